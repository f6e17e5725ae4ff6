"""Columns that are split over holders: what a real node reads of its table, and which configurations are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_client_app import SECRET, join

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, FedsynError, NodeError, NotReady, RunError
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.loading import parse_config
from fedsyn.registry import contract_class
from fedsyn.runs.holders import _real_holder
from fedsyn.table.schema import Schema
from fedsyn.wire.refusals import NOT_READY, refusal_of

pytest.importorskip("tenseal")

SCHEMA = """\
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 4, dtype: integer}
  smokes: {kind: categorical, categories: ['no', 'yes']}
  floor: {kind: categorical, categories: ['0', '1', '2']}
label: smokes
"""
HASH = Schema.loads(SCHEMA).sha256
SPLIT = [["floor", "age"], ["smokes"]]
PACKED = {"protocol": "fhe", "noise": "distributed", "corrupted": 0.5, "fhe": {"compute": "packed"}}


def as_deployed(document: dict[str, Any]) -> RunConfig:
    """A deployment's configuration, past the check that keeps split columns in simulations."""
    config = parse_config(document)
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"engine": "deployment"})})


def deployed(columns: list[list[str]] | None = None) -> RunConfig:
    """Of two real holders."""
    return as_deployed(
        {
            "mechanism": {"name": "fhaim", "rounds": 2},
            "data": {"source": "survey"},
            "federation": {"clients": 2, "minimum_cohort": 2, "columns": SPLIT if columns is None else columns},
            "privacy": {"epsilon": 2.0, "delta": 1e-5, "client_sizes": "public"},
            "workload": {"degree": 2, "size": None},
            "aggregation": PACKED,
            "evaluation": [],
        }
    )


def node_with(folder: Path, rows: str, partition: int | str | None, **more: Any) -> dict[str, Any]:
    """The node configuration of a holder with this table."""
    (folder / "rows.csv").write_text(rows, encoding="utf-8")
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    node = {"data": str(folder / "rows.csv"), "schema": str(folder / "schema.yaml"), "config-sha256": deployed().sha256}
    return node | ({} if partition is None else {"partition-id": partition}) | more


def codes_of(node: dict[str, Any], config: RunConfig | None = None) -> list[list[int]]:
    return _real_holder(config or deployed(), node, {}).codes.tolist()


# What a node reads ---------------------------------------------------------------------------------------------------


def test_a_node_reads_its_own_columns_and_has_none_of_the_others(tmp_path: Path) -> None:
    assert codes_of(node_with(tmp_path, "floor,age\n2,20\n0,89\n", 0)) == [[0, -1, 2], [3, -1, 0]]
    (tmp_path / "other").mkdir()
    assert codes_of(node_with(tmp_path / "other", "smokes\nyes\nno\n", "1")) == [[-1, 1, -1], [-1, 0, -1]]


def test_a_node_with_more_columns_reads_no_more_of_them(tmp_path: Path) -> None:
    """Neither a column that is another holder's, whatever stands in it, nor one that the schema does not have."""
    rows = f"age,smokes,floor,name\n20,{SECRET},2,{SECRET}\n"
    assert codes_of(node_with(tmp_path, rows, 0)) == [[0, -1, 2]]


def test_a_node_takes_no_part_in_a_deployment_with_split_columns(tmp_path: Path) -> None:
    """A deviating server could open what is multiplied under encryption, so such runs are simulations."""
    answer = join(node_with(tmp_path, "smokes\nyes\nno\nyes\n", 1), deployed(), schema=HASH)
    assert answer["ok"] is False and "is not valid for this node's fedsyn" in answer["sentence"]


def test_values_outside_the_schema_and_missing_ones_get_codes_as_ever(tmp_path: Path) -> None:
    node = node_with(tmp_path, "age,floor\n300,1\n-5,0\n", 0)
    assert codes_of(node) == [[3, -1, 1], [0, -1, 0]]
    schema = SCHEMA.replace("categories: ['no', 'yes']", "categories: ['no', 'yes'], other: true")
    (tmp_path / "one").mkdir()
    node = node_with(tmp_path / "one", "smokes\nyes\nmaybe\nno\n", 1)
    Path(node["schema"]).write_text(schema, encoding="utf-8")
    assert [row[1] for row in codes_of(node)] == [1, 2, 0]


def test_without_split_columns_a_node_still_needs_all_of_them(tmp_path: Path) -> None:
    document = deployed().to_dict()
    del document["federation"]["columns"]
    del document["runtime"]
    whole = as_deployed(document)
    node = node_with(tmp_path, "smokes\nyes\n", 1, **{"config-sha256": whole.sha256})
    with pytest.raises(NotReady) as unready:
        codes_of(node, whole)
    assert "lacks" in str(unready.value.__cause__)
    (tmp_path / "rows.csv").write_text("age,smokes,floor\n20,yes,1\n", encoding="utf-8")
    assert codes_of(node, whole) == [[0, 1, 1]]


@pytest.mark.parametrize(
    ("partition", "rows", "told"),
    [
        (None, "floor,age\n2,20\n", "has a list for each partition: this node needs its own 'partition-id'"),
        (2, "floor,age\n2,20\n", "gives this node no columns: its partition-id is beyond the last list"),
        (1, "floor,age\n2,20\n", "its schema, cannot be used"),
        (0, f"age,{SECRET}\n20,1\n", "its schema, cannot be used"),
        (0, "", "its schema, cannot be used"),
        ("first", "floor,age\n2,20\n", "partition-id must be a whole number"),
    ],
)
def test_a_node_that_is_set_up_wrongly_says_so_in_one_sentence(
    tmp_path: Path, partition: Any, rows: str, told: str
) -> None:
    with pytest.raises(FedsynError) as error:
        codes_of(node_with(tmp_path, rows, partition))
    message = str(error.value)
    assert told in message and str(tmp_path) not in message
    assert "\n" not in message and SECRET not in message
    if isinstance(error.value, NotReady):  # of which a server hears less, and the node's own log says more
        assert refusal_of(error.value) == NOT_READY
        assert SECRET not in str(error.value.__cause__)


def test_a_holder_of_some_columns_may_have_no_rows(tmp_path: Path) -> None:
    assert codes_of(node_with(tmp_path, "age,floor\n", 0)) == []


def test_a_node_whose_schema_lacks_its_column_says_so(tmp_path: Path) -> None:
    """A pinned configuration and a schema that do not belong together."""
    node = node_with(tmp_path, "floor,age\n2,20\n", 0)
    Path(node["schema"]).write_text(SCHEMA.replace("floor:", "storey:"), encoding="utf-8")
    with pytest.raises(NodeError, match="a column that its schema does not have"):
        codes_of(node)


def test_the_columns_are_part_of_what_a_holder_agrees_to() -> None:
    """A node pins the hash of a configuration, and the columns are in it."""
    assert deployed([["floor"], ["smokes", "age"]]).sha256 != deployed().sha256


# What is refused ------------------------------------------------------------------------------------------------------

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
NAMES = list(DOMAIN)
CODES = TABLE.encode()


def split_config(columns: list[list[str]], mechanism: str = "fhaim", **nodes: Any) -> RunConfig:
    federation = {"columns": columns, "minimum_cohort": len(columns), **nodes.pop("federation", {})}
    options = {"rounds": 1} if mechanism in ("fhaim", "distaim") else None
    return config_of(mechanism, 2, options, **{"aggregation": PACKED, **nodes}, federation=federation)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([NAMES[:2], [*NAMES[2:], "wieght"]], r"has no column 'wieght' \(did you mean 'weight'\?\)"),
        ([NAMES[:1], NAMES[2:]], "federation.columns: no client holds column 'weight'"),
        ([NAMES[:2], NAMES[2:4], NAMES[4:]], "one non-empty list of attributes for each of the 2 clients"),
        ([NAMES], "one non-empty list of attributes for each of the 2 clients"),
        ([NAMES[:3], NAMES[2:]], "no attribute in two of them"),
        ([[], NAMES], "one non-empty list"),
    ],
)
def test_lists_that_do_not_fit_the_schema_or_the_clients(columns: list[list[str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        contract_class("fhaim")(split_config(columns), DOMAIN)
    assert "\n" not in str(caught.value)


STORE = r"need a mechanism with a store \(fhaim\), aggregation.protocol: fhe with fhe: \{compute: packed\}"


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"aggregation": {"protocol": "plain"}}, STORE),
        ({"aggregation": {**PACKED, "fhe": None}}, STORE),
        ({"aggregation": {**PACKED, "fhe": {"compute": "client"}}}, STORE),
        ({"mechanism": "distaim", "aggregation": {"protocol": "mpc", "noise": "distributed"}}, STORE),
        ({"mechanism": "sketch_aim", "aggregation": {"protocol": "fhe", "noise": "distributed"}}, STORE),
        ({"privacy": {"client_sizes": "private"}}, "privacy.client_sizes: public"),
        ({"federation": {"sampling_rate": 0.5}}, "federation.sampling_rate: 2 clients|everybody in every round"),
        ({"aggregation": {**PACKED, "corrupted": 0.0}}, "0 counts on nobody"),
    ],
)
def test_configurations_that_cannot_have_split_columns(nodes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        split_config([NAMES[:2], NAMES[2:]], **nodes)
    assert "\n" not in str(caught.value)


def test_products_of_columns_count_pairs_and_no_more() -> None:
    config = split_config([NAMES[:2], NAMES[2:]], workload={"degree": 3})
    with pytest.raises(ConfigError, match=r"counts pairs of columns, .* set workload.degree: 2"):
        contract_class("fhaim")(config, DOMAIN)


# Whole runs -----------------------------------------------------------------------------------------------------------


def parts_of(columns: list[list[str]], rows: tuple[int, int]) -> Federation:
    parts = []
    for names, n in zip(columns, rows, strict=True):
        held = [NAMES.index(name) for name in names]
        part = np.full((n, len(NAMES)), -1, np.int64)
        part[:, held] = CODES[:n, held]
        parts.append(part)
    return Federation(TABLE, tuple(parts))


@pytest.mark.slow
@pytest.mark.thorough
def test_two_holders_of_different_columns_make_one_table() -> None:
    columns = [[NAMES[3], NAMES[0]], [NAMES[1], NAMES[2], NAMES[4]]]
    outcome = finished(execute(split_config(columns), parts_of(columns, (len(CODES), len(CODES)))))
    assert outcome.dropped == set() and len(outcome.synthetic) == len(CODES)


def test_a_holder_with_another_number_of_rows_ends_the_run_in_one_sentence() -> None:
    columns = [NAMES[:2], NAMES[2:]]
    outcome = execute(split_config(columns), parts_of(columns, (len(CODES), len(CODES) - 1)))
    assert isinstance(outcome.error, RunError) and outcome.dropped == {1} and "\n" not in str(outcome.error)
    assert "more or fewer rows than the other holder of these people's columns" in str(outcome.error)
    assert not outcome.strategy.ledger.releases
