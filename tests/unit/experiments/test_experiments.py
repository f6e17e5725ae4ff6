"""The programs of the experiments: what they compare, accept and draw. tests/docs_lint.py reads their files."""

import importlib.util
import pickle
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from experiments.distributed_aim_figure1.run import top_k, top_k_overlap
from experiments.drawing import Point, against
from experiments.splits import FILE, clustered, with_splits
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, DataError, FedsynError
from fedsyn.loading import parse_config
from fedsyn.plugins.partitioners.clustering import store_splits
from fedsyn.registry import partitioner as make_partitioner
from fedsyn.runs.prepare import encoded_table, split_tables
from fedsyn.sweep import Sweep, load_sweep
from fedsyn.table.data.partition import PartitionInput

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENTS = ROOT / "experiments"
FOLDERS = sorted(path.parent for path in EXPERIMENTS.glob("*/expected.yaml"))
SWEPT = [folder for folder in FOLDERS if (folder / "sweep.yaml").is_file()]


@cache
def sweep_of(name: str) -> Sweep:
    """An experiment's sweep, of up to a thousand cells: two tests read all of them."""
    return load_sweep(EXPERIMENTS / name / "sweep.yaml")


def module_of(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return module_of(EXPERIMENTS / "check.py", "experiments_check")


@pytest.fixture(scope="module")
def timed() -> ModuleType:
    return module_of(EXPERIMENTS / "timed.py", "experiments_timed")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def test_heterogeneity_expects_valid_partitions() -> None:
    document = yaml.safe_load((EXPERIMENTS / "flaim_table5" / "expected.yaml").read_text(encoding="utf-8"))
    assert len(document["values"]) == 8
    for value in document["values"]:
        options = dict(value["partition"])
        make_partitioner(options.pop("name"), **options)
        assert 0 < value["paper"] < 1


SMALL = """
base:
  mechanism: {name: aim, rounds: 2}
  data: {source: synthfs, options: {rows: 400, clients: 4, features: 3}, bins: 4}
  federation: {clients: 4, partition: native}
  privacy: {epsilon: 1.0, delta: 1.0e-5}
  workload: {degree: 2, size: 2}
  evaluation: [workload_error]
grid: {privacy.epsilon: [0.1, 100.0]}
seeds: [0, 1]
"""
EXPECTED = """
values: [{where: {privacy.epsilon: 100.0}, metric: workload_error, expected: 9.0, paper: 0.2}]
claims:
  - says: more budget, less error
    metric: workload_error
    descending: [{privacy.epsilon: 0.1}, {privacy.epsilon: 100.0}]
    held: true
ranks:
  - metric: workload_error
    of: [{privacy.epsilon: 0.1}, {privacy.epsilon: 100.0}]
    over: [{data.source: synthfs}]
    expected: [2.0, 1.0]
    paper: [1.5, 1.5]
    tolerance: 0.1
panels: [{metric: workload_error, x: privacy.epsilon}]
"""


class Small:
    """A folder of experiments with one, `small`, whose results the first check leaves for the others."""

    def __init__(self, folder: Path, check: ModuleType) -> None:
        self.home, self.out, self.check = folder, folder / "out", check
        (folder / "small").mkdir()
        (folder / "small" / "sweep.yaml").write_text(SMALL)

    def checked(self, expected: str, page: str, accepting: bool = False) -> bool:
        (self.home / "small" / "expected.yaml").write_text(expected)
        (self.home / "small" / "README.md").write_text(page)
        return bool(self.check.check("small", self.out, 1, accepting))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, check: ModuleType) -> Small:
    return Small(tmp_path_factory.mktemp("checked"), check)


@pytest.fixture(scope="module")
def accepted(small: Small) -> tuple[str, str]:
    """What `--accept` writes, and a page that prints it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.check, "HERE", small.home)
        assert not small.checked(EXPECTED.replace("held: true", "held: false"), "| 9.0 |", accepting=True)
    text = (small.home / "small" / "expected.yaml").read_text()
    return text, f"| {yaml.safe_load(text)['values'][0]['expected']} |"


@pytest.mark.parametrize(
    ("old", "new", "good"),
    [
        ("", "", True),
        ("held: true", "held: false", False),
        ("held: true", "held: true, factor: 1000", False),
        ("expected: [2.0, 1.0]", "expected: [1.0, 2.0]", False),
    ],
)
def test_check_runs_compares_and_draws(
    small: Small, accepted: tuple[str, str], monkeypatch: pytest.MonkeyPatch, old: str, new: str, good: bool
) -> None:
    monkeypatch.setattr(small.check, "HERE", small.home)
    expected, page = accepted
    assert small.checked(expected.replace(old, new.replace(", f", "\n    f")) if old else expected, page) is good
    table = (small.out / "table.md").read_text(encoding="utf-8")
    assert "more budget, less error" in table and "epsilon 100.0" in table
    assert (small.out / "plot.png").read_bytes().startswith(b"\x89PNG")


CLUSTERED = """
base:
  mechanism: {name: naive_flaim, rounds: 1}
  data: {source: synthfs, options: {rows: 200, clients: 4, features: 3}, bins: 4}
  federation: {clients: 3, partition: {name: clustering}}
  privacy: {epsilon: 1.0, delta: 1.0e-5, client_sizes: public}
  workload: {degree: 2, size: 2}
  evaluation: [workload_error]
list: [{mechanism: {name: aim}}, {mechanism: {name: naive_flaim}}]
seeds: [0, 1]
"""


def test_a_sweep_takes_shipped_splits_and_refuses_to_make_another(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(CLUSTERED)
    sweep, file = load_sweep(tmp_path / "sweep.yaml"), tmp_path / "splits.npz"
    central, config = (sweep.cells[i].config for i in (0, -1))
    rows = encoded_table(config.data)
    parts = [np.arange(i, len(rows.train), 3) for i in range(3)]
    store_splits(file, [(PartitionInput(rows.train, rows.schema.domain), parts, 0)])
    taken = [
        split_tables(cell.config).parts
        for cell in with_splits(sweep, file).cells
        if cell.config.mechanism.name != "aim"
    ]
    assert len(taken) == 2 and all(np.array_equal(a, b) for each in taken for a, b in zip(each, parts, strict=True))
    assert clustered([central]) == [] and clustered(cell.config for cell in sweep.cells) == [sweep.cells[2].config]
    with pytest.raises(DataError, match="another split"):
        with_splits(sweep)


def test_every_clustered_table_of_a_sweep_has_its_split() -> None:
    sweeps = [sweep_of(folder.name) for folder in SWEPT]
    tables = clustered(cell.config for sweep in sweeps for cell in sweep.cells)
    with np.load(FILE) as stored:
        assert len(stored.files) == len(tables) == 7
        assert all(stored[name].max() == 99 for name in stored)


def test_a_digit_of_a_page_that_is_changed_is_found(
    small: Small, accepted: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.check, "HERE", small.home)
    expected, page = accepted
    number = page.strip("| ")
    last = number[:-1] + str((int(number[-1]) + 5) % 10)
    assert not small.checked(expected, page.replace(number, last)), "the page differs from what is expected"
    other = str(round(2 * float(number), 4))
    assert not small.checked(expected.replace(number, other), page.replace(number, other)), "both differ from the run"
    assert small.checked(expected, page)


@pytest.mark.parametrize("folder", SWEPT, ids=lambda folder: folder.name)
def test_a_page_prints_what_is_expected_of_its_sweep(check: ModuleType, folder: Path) -> None:
    expected, page = check.Expected.load(folder / "expected.yaml"), _text(folder / "README.md")
    assert check.unprinted(expected, page) == []
    if expected.values:
        first = expected.values[0].expected
        changed = re.sub(r"-?\d[\d,.]*\d", lambda each: "77.7" if check.rounds_to(first, each[0]) else each[0], page)
        assert check.unprinted(expected, changed)


MEAN = re.compile(r"(-?\d[\d,]*\.?\d*)(?: ± \d| \(\d[\d.,]*\))")


def unexpected(check: ModuleType, folder: Path, page: str) -> list[str]:
    """Returns the means with a deviation, in tables of a page, that nobody published and no experiment expects.

    Other experiments are those that the page links to.
    """
    quoted = [other for other in SWEPT if other == folder or f"](../{other.name})" in page]
    values = [value for each in quoted for value in check.Expected.load(each / "expected.yaml").values]
    known = [number for value in values for number in (value.expected, value.paper, value.code) if number is not None]
    rows = [line for line in page.splitlines() if line.startswith("|")]
    means = [mean for line in rows for mean in MEAN.findall(line)]
    return [mean for mean in means if not any(check.rounds_to(number, mean) for number in known)]


@pytest.mark.parametrize("folder", SWEPT, ids=lambda folder: folder.name)
def test_a_mean_of_a_page_is_compared_with_its_sweep(check: ModuleType, folder: Path) -> None:
    page = _text(folder / "README.md")
    assert unexpected(check, folder, page) == []
    assert unexpected(check, folder, page + "\n| Adult | 77.77 ± 0.01 | 88.88 (0.01) |\n") == ["77.77", "88.88"]


def test_what_came_out_is_accepted_as_expected(check: ModuleType, accepted: tuple[str, str]) -> None:
    document = yaml.safe_load(accepted[0])
    assert document["claims"][0]["held"] is True and document["values"][0]["paper"] == 0.2
    with pytest.raises(ConfigError, match="1 values, of which 2 can be"):
        check.accepted("expected: 1\nexpected: 1", [(1.0, 0.1, 4)], [])


def test_an_expected_value_has_two_digits_of_its_error(check: ModuleType) -> None:
    assert check.accepted("expected: 7", [(0.12345, 0.01, 4)], []) == "expected: 0.123"
    assert check.accepted("expected: 7", [(12345.6, 0.0, 4)], []) == "expected: 12346"
    assert check.accepted("expected: 7", [(0.0, 3e-5, 4)], []) == "expected: 0.000000"


def test_check_refuses_what_the_sweep_does_not_hold(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SMALL)
    lookup = check.Lookup(load_sweep(tmp_path / "sweep.yaml"))
    with pytest.raises(ConfigError, match="no cell"):
        lookup.combination({"privacy.epsilon": 3.0})
    with pytest.raises(ConfigError, match="several"):
        lookup.combination({"mechanism.name": "aim"})
    with pytest.raises(ConfigError, match="no experiment"):
        check.check("nothing", tmp_path, 1)
    (tmp_path / "expected.yaml").write_text("values: [{where: {}, metric: nll, expectd: 1}]")
    with pytest.raises(ConfigError, match="expectd"):
        check.Expected.load(tmp_path / "expected.yaml")


def test_lookup_sees_resolved_keys(check: ModuleType) -> None:
    config = parse_config(yaml.safe_load(SMALL)["base"], "small")
    assert check.flat(config.to_dict())["data.options.features"] == 3
    assert np.isclose(check.flat(config.to_dict())["federation.sampling_rate"], 1.0)


# Runs whose time is the result ----------------------------------------------------------------------------------------

TIMED = [folder for folder in FOLDERS if "timed import" in _text(folder / "run.py")]
MADE_UP = {"source": "synthfs", "options": {"rows": 600, "clients": 4, "features": 4}, "bins": 4}


def test_timed_experiments_have_two_modes(check: ModuleType) -> None:
    for folder in TIMED:
        has_two_modes(folder, check)


def has_two_modes(folder: Path, check: ModuleType) -> None:
    document = yaml.safe_load(_text(folder / "expected.yaml"))
    assert document["full"] != document["fast"]
    recorded = [*document["facts"].values(), *document["claims"]]
    assert all("full" in entry or "fast" in entry for entry in recorded)
    assert any("fast" in entry for entry in recorded)
    assert str(check.program_of(folder.name)).startswith(f"python experiments/{folder.name}/run.py --fast")
    assert f"python experiments/check.py {folder.name}" in _text(folder / "README.md")


LISTED = re.findall(r"^\| \[(\w+)\]\(\1\)", _text(EXPERIMENTS / "README.md"), re.MULTILINE)


@pytest.mark.parametrize("name", LISTED)
def test_check_knows_every_experiment_that_the_page_lists(check: ModuleType, name: str) -> None:
    command = check.program_of(name)
    if command is None:
        assert sweep_of(name).cells
    else:
        paths = [ROOT / path for path in re.findall(r"python (\S+\.py)", command)]
        paths += [ROOT / f"{module.replace('.', '/')}.py" for module in re.findall(r"python -m (\S+)", command)]
        assert paths and all(path.is_file() for path in paths)


def test_every_experiment_is_listed() -> None:
    assert len(TIMED) == 5 and len(LISTED) == len(set(LISTED))
    assert set(LISTED) == {path.parent.name for path in EXPERIMENTS.glob("*/README.md")} - {"variants"}


def test_a_program_gets_its_folder_and_says_how_it_went(check: ModuleType, tmp_path: Path) -> None:
    assert check.run_program("python -c 'import experiments.check' && echo $WORKERS > $OUT/n", tmp_path / "a", 3) == 0
    assert (tmp_path / "a" / "n").read_text() == "3\n" and check.run_program("exit 4", tmp_path, 1) == 4


def test_a_timed_run_counts_each_side_and_every_byte(timed: ModuleType, tmp_path: Path) -> None:
    case = timed.Case("committee", 4, 1, 1)
    kept = tmp_path / "payloads.pickle"
    taken = timed.run_case(case, MADE_UP, kept)
    plain = timed.run_case(replace(case, protocol="without masks"), MADE_UP)
    assert taken.model == plain.model  # the same bits
    assert taken.sums == plain.sums == 3
    assert len(plain.exchanges) == 1 + 3  # joining, then a message for each sum
    assert len(taken.exchanges) == 1 + 2 + 2 * 3  # a setup, and two for each sum
    assert 0 < taken.aim < taken.alone
    assert taken.side_by_side < taken.alone
    payloads = pickle.loads(kept.read_bytes())
    sizes = [(len(each), sum(len(one[1]) for one in each), sum(len(one[2]) for one in each)) for each in payloads]
    assert sizes == [exchange[:3] for exchange in taken.exchanges]


def test_finished_runs_are_read_and_unequal_bits_are_refused(timed: ModuleType, tmp_path: Path) -> None:
    one, other = timed.Case("committee", 4, 1, 1), timed.Case("without masks", 4, 1, 1)
    for case, model in ((one, "a"), (other, "a")):
        timed.store(tmp_path, case, "adult", timed.Taken(alone=1.0, model=model))
    assert [taken.alone for taken in timed.run_cases([one, other], tmp_path).values()] == [1.0, 1.0]
    timed.store(tmp_path, other, "adult", timed.Taken(alone=1.0, model="b"))
    with pytest.raises(FedsynError, match="not those of the same run"):
        timed.run_cases([one, other], tmp_path)
    timed.store(tmp_path, other, "adult", timed.Taken(alone=1.0, model="a", dropped=1))
    with pytest.raises(FedsynError, match="could not be used"):
        timed.run_cases([one, other], tmp_path)


@pytest.mark.parametrize(
    ("here", "good"),
    [({"a": 1.4, "b": 2.0}, True), ({"a": 1.6, "b": 2.0}, False), ({"a": 1.0, "b": 0.5}, False), ({"b": 2.0}, False)],
)
def test_judge_compares_facts_and_claims(timed: ModuleType, here: dict[str, float], good: bool) -> None:
    document = {
        "facts": {"a": {"says": "a", "full": 1.0, "factor": 1.5}, "unused": {"says": "-", "fast": 1, "factor": 2}},
        "claims": [
            {"says": "b is large", "fact": "b", "at_least": 1, "full": True},
            {"says": "b is small", "fact": "b", "at_most": 1, "full": False},
        ],
    }
    assert timed.judge(document, "full", here)[1] is good


def test_a_shaped_link_is_as_slow_as_it_is_told_to_be(tmp_path: Path) -> None:
    links = module_of(EXPERIMENTS / "distributed_aim_figure6" / "links.py", "experiments_links")
    if (reason := links.reason_against()) is not None:
        pytest.skip(f"shaping links {reason}")
    recorded = tmp_path / "payloads.pickle"
    recorded.write_bytes(pickle.dumps([[(node, bytes(20_000), bytes(10_000)) for node in (1, 2)]] * 2))
    try:
        seconds = links.measured(recorded, 2, 2.0)
    except OSError as error:
        pytest.skip(f"links cannot be shaped: {error}")
    assert seconds > 0.7 * 120_000 * 8 / 2e6  # a busy machine is slower, never faster


# Figures -------------------------------------------------------------------------------------------------------------


def test_the_largest_scores_come_first_and_ties_go_to_the_smaller_index() -> None:
    assert top_k(np.array([1.0, 5.0, 5.0, -2.0, 7.0]), 3) == [4, 1, 2]
    assert top_k(np.array([3.0, 3.0, 3.0]), 2) == [0, 1]
    assert top_k(np.array([-np.inf, 0.0]), 2) == [1, 0]


def test_the_overlap_of_a_choice_is_with_the_best_of_its_size() -> None:
    scores = np.array([9.0, 1.0, 8.0, 2.0, 7.0])
    assert top_k_overlap(scores, [2, 0]) == 1.0
    assert top_k_overlap(scores, [0, 4]) == 1 / 3
    assert top_k_overlap(scores, [1, 3]) == 0.0
    assert top_k_overlap(scores, [0, 1, 2, 3, 4]) == top_k_overlap(scores, []) == 1.0


def test_plans_are_told_how_near_they_were() -> None:
    plans = module_of(EXPERIMENTS / "plan" / "run.py", "experiments_plan")
    domain = Domain(("number", "word", "rare"), (5, 4, 3), {"number": 4, "rare": 3})
    rows = plans.Rows(domain, np.zeros((1, 3), np.uint8), np.zeros((1, 3), np.uint8))
    made = plans.schema_of(rows).domain
    assert made == domain and dict(made.ordered) == dict(domain.ordered), "a table's codes are its schema's"
    found = [plans.Outcome("a public table", "t", 100, 1.0, expected, 0.2) for expected in (0.24, 0.26, 0.17, 0.149)]
    assert plans.within(found) == 0.5 and [round(one.factor, 2) for one in found] == [1.2, 1.3, 1.18, 1.34]
    lines = list(plans.report(found))
    assert lines[2].startswith("| a public table | 4 | 1.00 | 0.23 | 50% |")
    assert lines[-1] == "a public table: nine of ten are within a factor of 1.33"


def test_forty_lines_are_told_apart() -> None:
    pytest.importorskip("altair")
    lines = [f"line {i}" for i in range(40)]
    points = [
        Point(line, "one" if x < 3 else "two", x, i + x, 0.1) for i, line in enumerate(lines) for x in (1.0, 2.0, 4.0)
    ]
    one, two = against("nll", points, "epsilon", lines=lines, numeric=True)
    layers = one.to_dict(validate=False)["layer"]
    assert two.title == "two" and layers[0]["encoding"]["color"]["scale"]["domain"] == lines
    dashes = layers[0]["encoding"]["strokeDash"]["scale"]["range"]
    shapes = layers[-1]["encoding"]["shape"]["scale"]["range"]
    looks = {(i % 7, tuple(dashes[i]), shapes[i]) for i in range(40)}  # seven colours
    assert len(looks) == 40
