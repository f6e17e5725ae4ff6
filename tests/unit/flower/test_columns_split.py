"""Columns that are split over holders: real nodes take no part, and which configurations are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_client_app import join

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, NodeError, RunError
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.loading import parse_config
from fedsyn.node.file import PolicyNode
from fedsyn.node.policy import Policy
from fedsyn.registry import contract_class
from fedsyn.runs.holders import _real_holder, own_columns
from fedsyn.runs.prepare import split_tables
from fedsyn.table.data.encoded import EncodedTable
from fedsyn.table.schema import Schema

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


def test_a_node_takes_no_part_in_a_deployment_with_split_columns(tmp_path: Path) -> None:
    """A deviating server could open what is multiplied under encryption, so such runs are simulations."""
    answer = join(node_with(tmp_path, "smokes\nyes\nno\nyes\n", 1), deployed(), schema=HASH)
    assert answer["ok"] is False and "is not valid for this node's fedsyn" in answer["sentence"]


def test_a_node_reads_no_columns_of_its_own(tmp_path: Path) -> None:
    """A row that it left out would put later ones beside other people's: past the configuration's check, too."""
    for rows in ("floor,age\n2,20\nattic,30\n", "age,smokes,floor\n20,yes,1\n"):
        with pytest.raises(NodeError, match="columns split over holders"):
            _real_holder(deployed(), node_with(tmp_path, rows, 0), {})
    policy = Policy.__new__(Policy)
    policy.node = PolicyNode.model_construct()
    with pytest.raises(NodeError, match="columns split over holders"):
        policy.check_configuration(deployed())


def test_a_row_that_one_column_leaves_out_leaves_every_holder_of_a_simulation(tmp_path: Path) -> None:
    """Rows lie side by side: they are those of one table, encoded once."""
    (tmp_path / "schema.yaml").write_text(SCHEMA.replace("'2']", "'2'], other: false"), encoding="utf-8")
    (tmp_path / "rows.csv").write_text("age,smokes,floor\n20,yes,2\n20,no,attic\n?,no,1\n89,no,0\n", encoding="utf-8")
    document = deployed().to_dict()
    document["data"] |= {"source": str(tmp_path / "rows.csv"), "schema": str(tmp_path / "schema.yaml")}
    document["runtime"] = {"engine": "inprocess"}
    config = parse_config(document)
    tables = split_tables(config)
    table = EncodedTable.of_arrays(tables.train, [0, len(tables.train)], tables.schema.domain)
    parts = [own_columns(config, table, holder).tolist() for holder in (0, 1)]
    assert parts == [[[0, -1, 2], [3, -1, 0]], [[-1, 1, -1], [-1, 0, -1]]]


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
