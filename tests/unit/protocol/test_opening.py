"""Runs on open schemas: what is found, what it costs, and what a client refuses; engine and both halves are real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.config import EvaluationNode, RunConfig
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.privacy import Ledger, PrivacyBudget, accountant_for
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.protocol.driving import Driver
from fedsyn.protocol.explain import explain
from fedsyn.protocol.finding import ASKED, FOLLOWED, FOUND, FindBins, FindingClient, FindRanges
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class
from fedsyn.runs.engines import run
from fedsyn.runs.finish import finish
from fedsyn.runs.holders import app
from fedsyn.runs.prepare import deployed
from fedsyn.runs.report import write_full_report
from fedsyn.runs.serve import serve
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import ANSWER, ENVELOPE, Envelope, to_json
from fedsyn.wire.holder import Holder

SCHEMA = """
columns:
  cost: {kind: decimal, places: 2, bounds: private, bins: {private: 12}, missing: true}
  ward: {kind: categorical, categories: {private: {length: 8}}}
  born: {kind: date, bounds: private, bins: 6}
  sex: {kind: categorical, categories: [f, m]}
label: sex
"""
SECRET = "Xaver"  # the name of one row


def table(rows: int = 2400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = pd.to_datetime("1940-01-01") + pd.to_timedelta(rng.integers(0, 25_000, rows), unit="D")
    frame = pd.DataFrame(
        {
            "cost": rng.lognormal(5, 1.5, rows).round(2),
            "ward": rng.choice(["north", "south", "Łódź"], rows, p=[0.5, 0.3, 0.2]),
            "born": days.strftime("%Y-%m-%d"),
            "sex": rng.choice(["f", "m"], rows),
        }
    )
    frame.loc[frame.index[:40], "cost"] = np.nan
    frame.loc[7, "ward"] = SECRET
    frame.loc[7, "cost"] = 9e9
    return frame


def config(mechanism: str, **changes: Any) -> RunConfig:
    options = {"rounds": 2} if "rounds" in contract_class(mechanism).Options.model_fields else {}
    document: dict[str, Any] = {
        "mechanism": {"name": mechanism, **options},
        "data": {"source": "rows"},
        "federation": {"clients": 4},
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
        "workload": {"degree": 2},
        "runtime": {"seed": 3},
    }
    return parse_config({key: {**document.get(key, {}), **changes.get(key, {})} for key in {*document, *changes}})


def found_by(out: Path) -> Schema:
    return Schema.load(out / "schema.yaml")


def releases(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "ledger.json").read_text(encoding="utf-8"))["releases"]


# What is found, and what it costs ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["sketch_aim", "aim", "naive_flaim"])  # sums, a store, asks
def test_every_mechanism_runs_on_what_was_found(mechanism: str, tmp_path: Path) -> None:
    frame = table()
    metrics = run(config(mechanism), tmp_path / "out", table=frame, schema=Schema.loads(SCHEMA))
    closed = found_by(tmp_path / "out")
    assert not closed.open and metrics["dropped"] == 0
    assert closed.columns["ward"].values == ("north", "south", "Łódź", "other")  # type: ignore[union-attr]
    edges = closed.columns["cost"].edges / 100  # type: ignore[union-attr]
    assert 0 <= edges[0] <= 30 and 500 < edges[-1] < 1e5, "where rows are, not where the one row is"
    assert 5 <= len(edges) <= 13
    born = closed.to_dict()["columns"]["born"]
    assert born["lower"] <= "1945" and born["upper"] >= "2000" and born["bins"] == 6
    made = pd.read_csv(tmp_path / "out" / "synthetic.csv")
    assert set(made["ward"]) <= {"north", "south", "Łódź", "other"}
    everything = "".join(
        path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("*.*") if path.suffix != ".npz"
    )
    assert SECRET not in everything and "9e+09" not in everything
    assert metrics["workload_error"] < 0.5


@pytest.mark.slow
def test_finding_protects_whole_clients_too(tmp_path: Path) -> None:
    """Each vector of counts moves by the rows of a client at most; the same rows take part in everything."""
    changes = {"epsilon": 50.0, "unit": "client", "rows_per_client": 250}
    run(config("sketch_aim", privacy=changes), tmp_path / "out", table=table(), schema=Schema.loads(SCHEMA))
    report = json.loads((tmp_path / "out" / "ledger.json").read_text(encoding="utf-8"))
    finding = [entry for entry in report["releases"] if entry["name"].startswith("find-")]
    assert {entry["name"] for entry in finding} == {"find-ranges", "find-bins", "find-categories"}
    assert {entry["sensitivity"] for entry in finding} == {250.0} and report["epsilon"] <= 50.0
    allowed = 0.1 * np.sqrt(3) * (report["capacity"] / 2 - report["releases"][0]["rho"])
    assert sum(entry["rho"] - entry.get("extra", 0.0) for entry in finding) <= allowed * (1 + 1e-6)
    assert len(pd.read_csv(tmp_path / "out" / "synthetic.csv")) == pytest.approx(1000, abs=200)  # of 2,400 rows


@pytest.mark.parametrize("share", [None, 0.3])
def test_finding_is_in_the_ledger_and_within_its_share(share: float | None, tmp_path: Path) -> None:
    settings = config("sketch_aim", privacy={"schema_share": share})
    run(settings, tmp_path / "out", table=table(), schema=Schema.loads(SCHEMA))
    report = json.loads((tmp_path / "out" / "ledger.json").read_text(encoding="utf-8"))
    sizes, *rest = report["releases"]
    finding = [entry for entry in rest if entry["name"].startswith("find-")]
    assert sizes["name"] == "sizes"
    assert [entry["name"] for entry in finding[:2]] == ["find-ranges", "find-bins"]
    assert {entry["name"] for entry in finding[2:]} == {"find-categories"} and rest[: len(finding)] == finding
    allowed = (0.1 * np.sqrt(3) if share is None else share) * (report["capacity"] / 2 - sizes["rho"])  # mu^2 = 2 rho
    numbers = sum(entry["rho"] for entry in finding[:2])
    assert numbers == pytest.approx(allowed * 2 / 3, rel=1e-9), "two of the three columns"
    # north, south and Łódź (seven bytes) are known after eight of the nine levels that eight bytes may take.
    assert sum(entry["rho"] for entry in finding[2:]) == pytest.approx(allowed / 3 * 8 / 9, rel=1e-9)
    one_way = rest[len(finding)]
    left = report["capacity"] / 2 - sizes["rho"] - sum(entry["rho"] for entry in finding)
    assert one_way["name"] == "one-way" and one_way["rho"] == pytest.approx(0.1 * left), "the mechanism has the rest"
    assert report["spent"] <= report["capacity"]
    assert "finding what is private" in report["statement"]["cost"]
    assert "of cost, ward, born only what is found" in report["statement"]["public"]


def test_counts_and_sensitivities_in_the_ledger_are_those_of_the_vectors(tmp_path: Path) -> None:
    run(config("sketch_aim"), tmp_path / "out", table=table(), schema=Schema.loads(SCHEMA))
    ranges, bins, *categories = [entry for entry in releases(tmp_path / "out") if entry["name"].startswith("find-")]
    assert (ranges["count"], ranges["sensitivity"]) == (2, 1.0), "cost and born: a row is in one bucket of each"
    assert (bins["count"], bins["sensitivity"]) == (5, 1.0), "the grid of cost alone: a row is in one block of 5 widths"
    assert all((entry["count"], entry["sensitivity"]) == (1, 1.0) for entry in categories)


@pytest.mark.slow
def test_secure_sums_find_the_same_bits_as_plain_ones(tmp_path: Path) -> None:
    texts = []
    for protocol in ("secagg", "plain"):
        settings = config("fed_privsyn", aggregation={"protocol": protocol, "noise": "distributed"})
        run(settings, tmp_path / protocol, table=table(), schema=Schema.loads(SCHEMA))
        texts.append([(tmp_path / protocol / name).read_bytes() for name in ("schema.yaml", "synthetic.csv")])
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_all_take_part_in_finding_where_some_take_part_in_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    answer = Driver.answer

    def watched(self: Driver, yielded: Any, *where: Any) -> Any:
        asked.append((yielded.request.name, len(yielded.cohort)))
        return answer(self, yielded, *where)

    monkeypatch.setattr(Driver, "answer", watched)
    settings = config("naive_flaim", federation={"clients": 6, "sampling_rate": 0.5, "minimum_cohort": 2})
    run(settings, tmp_path / "out", table=table(), schema=Schema.loads(SCHEMA))
    finding = {size for name, size in asked if name.startswith("find-") or name == "close"}
    assert finding == {6} and min(size for _, size in asked) < 6


def test_a_label_that_is_open_can_still_part_a_simulation(tmp_path: Path) -> None:
    schema = Schema.loads(SCHEMA).adjusted(label="ward")
    settings = config("sketch_aim", federation={"clients": 3, "partition": {"name": "dirichlet", "beta": 0.5}})
    run(settings, tmp_path / "out", table=table(), schema=schema)
    assert found_by(tmp_path / "out").label == "ward"


def test_constraints_on_open_columns_hold_once_they_are_closed(tmp_path: Path) -> None:
    frame = table()
    frame["paid"] = (frame["cost"].fillna(0) * 0.5).round(2)
    text = SCHEMA.replace("label: sex", "  paid: {kind: decimal, places: 2, lower: 0, upper: 100000}\nlabel: sex")
    run(
        config("sketch_aim"), tmp_path / "out", table=frame, schema=Schema.loads(text + "constraints: [paid <= cost]\n")
    )
    made = pd.read_csv(tmp_path / "out" / "synthetic.csv").dropna()
    assert len(made) > 1000 and (made["paid"] <= made["cost"]).all()


@pytest.mark.slow
def test_a_page_that_is_written_later_measures_by_what_was_found(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "rows.csv", index=False)
    Schema.loads(SCHEMA).save(tmp_path / "open.yaml")
    data = {"source": str(tmp_path / "rows.csv"), "schema": str(tmp_path / "open.yaml")}
    run(config("sketch_aim", data=data), tmp_path / "out")
    (tmp_path / "out" / "comparison.json").unlink()
    write_full_report(tmp_path / "out", data=[str(tmp_path / "rows.csv")])
    quality = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))["quality"]
    scores = {column["name"]: column["score"] for column in quality["columns"]}
    assert scores["cost"] > 0.5 and scores["ward"] > 0.5, scores


# Real holders --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_holders_with_tables_of_their_own_find_together(tmp_path: Path) -> None:
    """Nodes that open their own files, a new client for every message, nothing but their state in between."""
    schema = Schema.loads(SCHEMA)
    schema.save(tmp_path / "schema.yaml")
    nodes = []
    for k in range(3):
        table(800, seed=k).to_csv(tmp_path / f"{k}.csv", index=False)
        nodes.append({"data": str(tmp_path / f"{k}.csv"), "schema": str(tmp_path / "schema.yaml"), "partition-id": k})
    changes = {"runtime": {"seed": None, "engine": "deployment"}, "federation": {"clients": 3}}
    settings = config("sketch_aim", **changes).model_copy(update={"evaluation": EvaluationNode()})
    grid = InProcessGrid(app, nodes, {"resolved": json.dumps(settings.to_dict())})
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "store").mkdir()
    settings.save(out / "config.yaml")
    prepared = deployed(settings, schema, tmp_path / "store")
    strategy = serve(settings, prepared, grid, out, None)
    assert strategy.model is not None and not any(record.dropped for record in strategy.records)
    finish(settings, prepared, strategy, out, 0.0)
    closed = found_by(out)
    assert closed.columns["ward"].values == ("north", "south", "Łódź", "other")  # type: ignore[union-attr]
    assert strategy.domain == closed.domain
    assert set(pd.read_csv(out / "synthetic.csv")["ward"]) <= set(closed.columns["ward"].values)  # type: ignore[union-attr]


# What cannot be, before anything is spent ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "changes", "message"),
    [
        (
            "distaim",
            {"aggregation": {"protocol": "mpc", "noise": "distributed"}},
            "aggregation.protocol: mpc forms none",
        ),
        ("sketch_aim", {"aggregation": {"protocol": "fhe", "noise": "distributed"}}, "protocol: fhe forms none"),
    ],
)
def test_protocols_without_such_sums_are_refused(
    mechanism: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        run(config(mechanism, **changes), tmp_path / "out", table=table(), schema=Schema.loads(SCHEMA))
    assert "allowed: plain, secagg" in str(error.value) and not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=message):
        explain(
            config(mechanism, **changes), Schema.loads(SCHEMA).domain, client_class(mechanism), Schema.loads(SCHEMA)
        )


def test_explain_says_what_is_asked_before_the_mechanism_begins() -> None:
    schema = Schema.loads(SCHEMA)
    meaning = explain(config("sketch_aim"), schema.domain, client_class("sketch_aim"), schema)
    assert [one.name for one in meaning.requests][2:6] == ["find-ranges", "find-bins", "find-categories", "close"]
    without = Schema.loads("columns: {x: {kind: integer, lower: 0, upper: private, bins: 5}}")
    meaning = explain(config("sketch_aim"), without.domain, client_class("sketch_aim"), without)
    assert [one.name for one in meaning.requests][2:4] == ["find-ranges", "close"]
    closed = Schema.loads("columns: {x: {kind: integer, lower: 0, upper: 9}}")
    meaning = explain(config("sketch_aim"), closed.domain, client_class("sketch_aim"), closed)
    assert not any(one.name.startswith("find-") for one in meaning.requests)


def test_the_share_of_the_schema_is_in_a_configurations_hash() -> None:
    assert config("sketch_aim", privacy={"schema_share": 0.2}).sha256 != config("sketch_aim").sha256


def test_too_few_contributions_end_the_run_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FindingClient, call: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(FindingClient, "ranges", refuse)
    with pytest.raises(RunError, match="'find-ranges' of round 0 was not opened") as error:
        run(config("sketch_aim"), tmp_path / "out", table=table(), schema=Schema.loads(SCHEMA))
    assert SECRET not in str(error.value)
    assert [entry["name"] for entry in releases(tmp_path / "out")] == ["sizes"], (
        "a sum that is not opened costs nothing"
    )


# One client, whatever the server asks --------------------------------------------------------------------------------


class Asked:
    """A client of an open schema, made anew for every message, with plain sums under the server's noise."""

    def __init__(self, frame: pd.DataFrame | None = None, schema: str = SCHEMA) -> None:
        self.schema = Schema.loads(schema)
        frame = table() if frame is None else frame
        settings = config("fed_privsyn", aggregation={"protocol": "plain", "noise": "server"})
        self.config, self.state = settings, dict[str, Any]()
        self.holder = Holder(
            0,
            self.schema.encode(frame),
            self.schema.domain,
            self.schema.sha256,
            Randomness(0),
            self.state,
            own=self.schema.block(frame).own,
            open_schema=self.schema,
        )
        self.finding = PrivateColumns(self.schema)
        self.cells = []
        for column in self.finding.ranges:
            last = len(column.edges) - 2
            self.cells.append([int(last - 20 <= i <= last - 10) for i in range(last + 1)])

    def __call__(
        self, name: str, params: Mapping[str, Any], shapes: list[int] | None = None, count: int = 1, sigma: float = 1e3
    ) -> dict[str, Any]:
        total = {"sigma": sigma, "sensitivity": 1.0, "count": count, "signed": False, "magnitude": 1.0, "asked": 2}
        spec = None if shapes is None else {**total, "shapes": [[n] for n in shapes], "number": 0}
        fields = json.loads(
            Envelope(name, "ask" if spec is None else "sum", 0, self.config.sha256, params).to_scalars()[ENVELOPE]
        )
        client = FindingClient(self.config, self.holder, contract_class("fed_privsyn"))
        sent, _, scalars = client.fit([], {ENVELOPE: to_json(fields if spec is None else {**fields, "sum": spec})})
        answer = json.loads(str(scalars[ANSWER]))
        assert SECRET not in str(scalars)
        return {**answer, "arrays": sent, "spent": client.ledger.spent}

    @property
    def universe(self) -> list[int]:
        return [len(column.edges) - 1 for column in self.finding.ranges]


def test_a_client_answers_once_and_charges_what_the_vectors_cost() -> None:
    asked = Asked()
    answer = asked("find-ranges", {}, asked.universe, count=2)
    assert answer["ok"] and answer["spent"] == pytest.approx(2 / 1e6)
    again = asked("find-ranges", {}, asked.universe, count=2)
    assert not again["ok"] and "once in a run" in again["sentence"] and again["spent"] == answer["spent"]
    assert asked.state[ASKED] == [[0, 0]]


def test_a_client_is_asked_in_order_and_about_what_goes_on_from_before() -> None:
    """Also where it missed a sum: it knows the beginnings. A refusal costs nothing."""
    asked = Asked()

    def about(*prefixes: str) -> dict[str, Any]:
        return asked("find-categories", {"prefixes": [list(prefixes)]}, [257 * len(prefixes)])

    assert about("")["ok"] and about("6e", "73")["ok"]
    spent = about("6e")["spent"]
    assert "in order" in about("73")["sentence"]
    for prefix in ("6f6f", "7469"):
        refused = about(prefix)
        assert not refused["ok"] and "goes on from none" in refused["sentence"] and refused["spent"] == spent
    for name, params, shapes in (("find-ranges", {}, asked.universe), ("find-bins", {"cells": asked.cells}, [11, 3])):
        refused = asked(name, params, shapes, count=2)
        assert not refused["ok"] and "in order: ranges, bins, categories" in refused["sentence"]
    assert about("6e6f72", "736f75")["ok"], "after a sum that this client missed"
    assert "goes on from none" in about("6e6f7273", "6e6f7373")["sentence"]
    assert not about("")["ok"] and not about("6e")["ok"]


def test_a_client_pays_no_more_than_the_share_for_what_is_found() -> None:
    asked = Asked()
    budget = PrivacyBudget(5.0, 1e-5)
    share = FindingClient(asked.config, asked.holder, contract_class("fed_privsyn")).contract.budget.schema_share
    whole = Ledger(budget, accountant_for("gaussian", budget)).remaining_rho
    # Two vectors of sensitivity 1 are rho 1/sigma^2; then one, of 1/(2 sigma^2).
    assert not asked("find-ranges", {}, asked.universe, count=2, sigma=(0.99 / (share * whole)) ** 0.5)["ok"]
    asked.state.clear()
    assert asked("find-ranges", {}, asked.universe, count=2, sigma=(2.0 / (share * whole)) ** 0.5)["ok"]
    refused = asked("find-categories", {"prefixes": [[""]]}, [257], sigma=(0.9 / (share * whole)) ** 0.5)
    assert refused["kind"] == "budget", "although its ledger has room for it"
    asked.state[ASKED] = [[0, 0]]
    asked.state.pop(FOLLOWED, None)
    assert asked("find-categories", {"prefixes": [[""]]}, [257], sigma=(1.01 / (share * whole)) ** 0.5)["ok"]


@pytest.mark.parametrize("frame", [table(0), table(1), table()], ids=["no rows", "one row", "many"])
def test_shapes_do_not_follow_the_rows(frame: pd.DataFrame) -> None:
    asked = Asked(frame)
    contract = FindingClient(asked.config, asked.holder, contract_class("fed_privsyn")).contract
    assert FindRanges().layout(contract, ()).shapes == tuple((n,) for n in asked.universe)
    assert FindBins(cells=asked.cells).layout(contract, ()).shapes == ((11,), (3,))
    assert asked("find-ranges", {}, asked.universe, count=2)["ok"]
    assert asked("find-bins", {"cells": asked.cells}, [11, 3], count=2)["ok"]


def test_a_sum_that_accounts_for_less_or_is_laid_out_otherwise_is_refused() -> None:
    asked = Asked()
    assert "touch 2 arrays" in asked("find-ranges", {}, asked.universe, count=1)["sentence"]
    asked.state.clear()
    assert "over another domain" in asked("find-ranges", {}, [5, 5], count=2)["sentence"]
    asked.state.clear()
    refused = asked("find-ranges", {}, asked.universe, count=2, sigma=1e-3)
    assert refused["kind"] == "budget" and refused["spent"] == 0
    assert "answered in a sum only" in asked("find-ranges", {})["sentence"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("find-bins", lambda own: own.cells[:1]),
        ("find-bins", lambda own: [[*own.cells[0], 1], own.cells[1]]),
        ("find-bins", lambda own: [[0] * len(own.cells[0]), own.cells[1]]),
        ("find-bins", lambda own: [[n * 100_000 for n in own.cells[0]], own.cells[1]]),
        ("find-bins", lambda own: [[1 if i in (3, 5) else 0 for i in range(len(own.cells[0]))], own.cells[1]]),
        ("find-bins", lambda own: [[-n for n in own.cells[0]], own.cells[1]]),
        ("find-categories", lambda own: [["zz"]]),
        ("find-categories", lambda own: [["6E"]]),
        ("find-categories", lambda own: [["6e", "6e"]]),
        ("find-categories", lambda own: [["6e", "6e6f"]]),
        ("find-categories", lambda own: [["6e" * 9]]),
        ("find-categories", lambda own: [[f"{i:04x}" for i in range(129)]]),
        ("find-categories", lambda own: [[""], [""]]),
        ("find-categories", lambda own: [[]]),
    ],
)
def test_other_universes_than_its_own_contract_derives_are_refused(name: str, change: Any) -> None:
    asked = Asked()
    params = {"find-bins": "cells", "find-categories": "prefixes"}
    answer = asked(name, {params[name]: change(asked)}, [10], count=9)
    assert not answer["ok"] and answer["kind"] == "protocol" and answer["spent"] == 0, answer


def test_what_the_schema_does_not_call_for_is_refused() -> None:
    asked = Asked()
    asked.schema = Schema.loads(
        "columns: {x: {kind: integer, lower: 0, upper: 9}, sex: {kind: categorical, categories: [f]}}"
    )
    with pytest.raises(AssertionError):
        FindingClient(
            asked.config,
            Holder(0, np.zeros((1, 2), int), asked.schema.domain, "", Randomness(0)),
            contract_class("aim"),
        )
    plain = client_class("fed_privsyn")
    assert not any(name.startswith("find-") or name == "close" for name in plain.requests)
    assert set(FindingClient.requests) == {
        "join",
        "sizes",
        "rows",
        "find-ranges",
        "find-bins",
        "find-categories",
        "close",
    }
    answer = Asked()("one-way", {}, [3], count=1)
    only_wards = Asked(schema="columns: {ward: {kind: categorical, categories: private}}")
    for name, params in (("find-ranges", {}), ("find-bins", {"cells": []})):
        assert "leaves nothing of that kind to be found" in only_wards(name, params, [3])["sentence"]
    only_costs = Asked(schema="columns: {cost: {kind: numeric, bounds: private, bins: 4}}")
    for name, params in (("find-categories", {"prefixes": []}), ("find-bins", {"cells": only_costs.cells})):
        assert "leaves nothing of that kind to be found" in only_costs(name, params, [3])["sentence"]
    assert "does not answer 'one-way'" in answer["sentence"], "nothing of the mechanism before the schema is closed"


@pytest.mark.parametrize(
    "change",
    [
        {"cuts": [[0, 5], [0, 3]]},  # born has bins of its own
        {"cuts": [[0, 99], []]},
        {"cuts": [[3, 3], []]},
        {"cuts": [[5, 3], []]},
        {"cuts": [[0], []]},
        {"cuts": [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11], []]},
        {"categories": [["a", "a"]]},
        {"categories": [["x" * 9]]},
        {"categories": [[" "]]},
        {"categories": [["a "]]},
        {"categories": [["a\nb"]]},
        {"categories": [["\x1b[31m"]]},
        {"categories": [["\ufeffa"]]},
        {"categories": [["\u2028a"]]},
        {"categories": [["\ud800"]]},
        {"categories": [["n/a"]]},
        {"categories": []},
        {"categories": [[f"{i}" for i in range(65)]]},
        {"cells": []},
        {"atoms": []},
        {"atoms": [[11], []]},
        {"atoms": [[-1], []]},
        {"atoms": [[1, 0], []]},
        {"atoms": [[4], []]},
        {"atoms": [[0, 0], []]},
    ],
)
def test_pieces_that_do_not_fit_the_schema_are_refused(change: dict[str, Any]) -> None:
    asked = Asked()
    pieces = {"cells": asked.cells, "cuts": [[0, 5, 11], []], "atoms": [[], []], "categories": [["north"]]}
    answer = asked("close", pieces | change)
    assert not answer["ok"] and answer["kind"] == "protocol" and FOUND not in asked.state, answer
    assert asked("close", pieces)["ok"] and asked.state[FOUND] == pieces
