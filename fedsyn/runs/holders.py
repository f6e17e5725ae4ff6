"""A node's side of a run: its rows, limits and refusals.

In a simulation a node is told its `partition-id` and opens that slice of the shared encoded table. In a deployment the
data holder's own node configuration names its table and the schema it approved:

    flower-supernode ... --node-config 'data="/secure/rows.csv" schema="/secure/schema.yaml" epsilon=1.0 delta=1e-5'

Secure sums under the malicious threat model also need `identity` (the holder's own key file) and `roster` (everybody's
public keys, as this holder pinned them), and so do runs of protocol fhe whose configuration has a roster; a node that
has them takes part in such runs only.

Columns that are split over holders (`federation.columns`) are for simulations. A row that one real holder leaves out,
because its column has no code for a value, would put every later row beside another person's: a node refuses such runs.

A node with `data` opens nothing that a server names, tells it nothing of what it read, refuses seeded noise, and spends
at most its own epsilon and delta in a run (default: the run's). The run's configuration comes from the server too, and
whole, as `fedsyn run` submits it; `config-sha256` pins the one that the holder agreed to (`RunConfig.sha256`). All of
that is code, and Flower runs the code that was submitted with the run: it binds only if the holder knows that code, by
running trusted apps alone (docs/deployment.md).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, NodeError, NotReady
from fedsyn.flower import Context, NumPyClient
from fedsyn.flower.direct import TableApp
from fedsyn.flower.state import read_state, write_state
from fedsyn.keys.holder_keys import load_identities, simulated_identities
from fedsyn.privacy import PrivacyBudget
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.protocol.finding import FOUND, FindingClient
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.runs.open_tables import read_own
from fedsyn.runs.run_config import config_of, is_resolved, store_of
from fedsyn.selection.views import ModelView, pooled_view
from fedsyn.table.schema import Schema
from fedsyn.table.schema.encoding import NOTHING_OWN, OwnRows
from fedsyn.table.schema.holdings import Holding, alone
from fedsyn.wire.holder import Account, Holder

if TYPE_CHECKING:
    from fedsyn.table.data.encoded import EncodedTable
    from fedsyn.table.data.readers import Options
    from fedsyn.table.schema.frames import AnyFrame


log = logging.getLogger("fedsyn")
_compact = json.JSONEncoder(separators=(",", ":")).encode


def client_fn(context: Context) -> NumPyClient:
    """Makes the mechanism's client half for this node's data holder."""
    node = context.node_config
    if "data" in node:
        require_resolved(context.run_config)  # before anything else is looked at
    config = config_of(context.run_config, int(node.get("num-partitions", 0)))
    text = read_state(context)
    state: dict[str, Any] = json.loads(text) if text else {}
    holder = _real_holder(config, node, state) if "data" in node else _simulated_holder(config, context, state)
    holder.save = lambda changed: write_state(context, _compact(changed))
    return client_of(config, holder)


def client_of(config: RunConfig, holder: Holder) -> Any:
    """Returns the mechanism's client half of a holder.

    As long as something of the holder's schema is private, it is the client that finds it.
    """
    client_half = client_class(config.mechanism.name)
    return (
        client_half(config, holder)
        if holder.open_schema is None
        else FindingClient(config, holder, client_half.Contract)
    )


def holder_of(
    rows: LoadedRows,
    partition: int | None,
    state: dict[str, Any],
    budget: PrivacyBudget,
    keys: tuple[str, str] | None,
    account: Account | None = None,
) -> Holder:
    """Returns a holder of real rows.

    Its noise is the operating system's.

    Args:
        rows: its own.
        partition: its number; None: the server gives one.
        state: what it remembers of the run.
        budget: that the run may spend of it.
        keys: files of its identity and its roster; None: it has none.
        account: of its ledger for life; such a holder answers an identical request again. None: it has no ledger.
    """
    coins, again = Randomness(None), account is not None
    holder = Holder(partition, rows.codes, rows.domain, rows.schema_hash, coins, state, budget, account, again=again)
    if rows.schema.open:
        holder.own, holder.open_schema = rows.own, rows.schema
    if keys is not None:
        holder.identities = partial(load_identities, *keys)
    return holder


def _simulated_holder(config: RunConfig, context: Context, state: dict[str, Any]) -> Holder:
    if "partition-id" not in context.node_config:
        raise NodeError("this node has neither 'data' nor 'partition-id' in its node configuration")
    if config.runtime.engine == "deployment":
        raise NodeError("a deployment's node needs 'data' and 'schema' in its node configuration")
    partition = int(context.node_config["partition-id"])
    folder = str(context.run_config.get("store") or store_of(context.run_config))
    stored = _store(folder)
    table, is_open = stored.table, stored.schema is not None and FOUND not in state
    if stored.schema is not None and not is_open:
        table = _closed_table(folder, stored.version, _compact(state[FOUND]))
    codes = table.rows(partition) if config.federation.columns is None else own_columns(config, table, partition)
    return Holder(
        partition,
        codes,
        table.domain,
        stored.schema_hash,
        Randomness(config.runtime.seed),
        state,
        pooled=partial(_pooled, table),
        own=stored.own.taken(slice(*table.offsets[partition : partition + 2])) if is_open else None,
        open_schema=stored.schema if is_open else None,
        identities=partial(simulated_identities, partition, table.clients),
    )


def own_columns(config: RunConfig, table: EncodedTable, partition: int) -> npt.NDArray[np.integer]:
    """Returns the (n, d) codes of a holder of some columns.

    They are -1 in every column that is another holder's.
    """
    codes, columns = table.pooled(), (config.federation.columns or ())[partition]
    others = [name not in columns for name in table.domain]
    return np.where(others, np.int64(-1), codes)


class Stored(NamedTuple):
    """Data that the clients of a simulation share.

    Attributes:
        table: their encoded rows, placeholders in open columns.
        schema_hash: of the run's schema.
        version: of the folder.
        schema: the run's, where something of it is private.
        own: the rows' own values in its open columns.
    """

    table: EncodedTable
    schema_hash: str
    version: int = 0
    schema: Schema | None = None
    own: OwnRows = NOTHING_OWN


def _store(folder: str) -> Stored:
    """Returns the clients' shared table, and what belongs to it.

    It is the one that this process was given, or that of the folder.
    """
    return _given.get(folder) or _open_store(folder, os.stat(f"{folder}/schema.yaml").st_mtime_ns)  # noqa: PTH116 - a Path costs as much as a client's counts


_given: dict[str, Stored] = {}


def packed_store(folder: Path) -> dict[str, Any]:
    """Packs a store for processes that do not see the folder.

    They take it by `take_store`.

    No class of ours is in it: a machine with another fedsyn reads it before it can say which one it has.
    """
    stored = _store(str(folder))
    return {
        "folder": str(folder),
        "codes": stored.table.pooled(),
        "offsets": stored.table.offsets,
        "domain": stored.table.domain.describe(),
        "schema": stored.schema_hash,
        "open": None if stored.schema is None else stored.schema.to_dict(),
        "own": pickle.dumps(stored.own),
        "version": stored.version,
    }


def take_store(packed: Mapping[str, Any]) -> None:
    """Lets the clients of this process use a packed table.

    They use it wherever their run names its folder. The last table is kept.
    """
    from fedsyn.table.data.encoded import EncodedTable

    if packed["folder"] not in _given:
        domain = Domain.described(packed["domain"])
        _given.clear()
        table = EncodedTable.of_arrays(packed["codes"], packed["offsets"], domain)
        schema = None if packed["open"] is None else Schema.from_dict(packed["open"])
        _given[packed["folder"]] = Stored(
            table, packed["schema"], packed["version"], schema, pickle.loads(packed["own"])
        )


@lru_cache(maxsize=4)
def _open_store(folder: str, modified: int) -> Stored:
    """Opens the clients' shared table, mapped once per process.

    The hash of its schema, and what else belongs to it, comes with it.
    """
    from fedsyn.table.data.encoded import EncodedTable

    schema = Schema.load(Path(folder) / "schema.yaml")
    own_rows = read_own(Path(folder))
    return Stored(EncodedTable(folder), schema.sha256, modified, schema if schema.open else None, own_rows)


@lru_cache(maxsize=2)
def _closed_table(folder: str, version: int, findings: str) -> EncodedTable:
    """Returns the clients' shared table, encoded by the closed schema.

    A client keeps what was found, and the schema is closed by it. The table is encoded once per
    process.
    """
    from fedsyn.table.data.encoded import EncodedTable

    stored = _store(folder)
    assert stored.schema is not None
    schema = PrivateColumns(stored.schema).closed(**json.loads(findings))
    codes = stored.own.coded(stored.table.pooled(), schema, stored.table.domain)
    return EncodedTable.of_arrays(codes, stored.table.offsets, schema.domain)


@lru_cache(maxsize=2)
def _pooled(table: EncodedTable) -> ModelView:
    """Returns all clients' rows together.

    They exist in one place in a simulation only. They are counted once per process.
    """
    return pooled_view(table.pooled(), table.domain)


def _real_holder(config: RunConfig, node: Any, state: dict[str, Any]) -> Holder:
    require_deployment(config.runtime.engine, config.runtime.seed)
    require_all_columns(config)
    budget = limits_of(config, node)
    if "schema" not in node:
        raise NodeError("a node with 'data' needs the schema that its holder approved, as 'schema'")
    partition = partition_of(node)
    files, apart = (str(node["data"]), str(node["schema"])), node.get("persons")
    rows = load_rows(
        *files,
        config.data.bins,
        config.data.label,
        persons=config.privacy.unit == "person",
        apart=None if apart is None else str(apart),
    )
    if rows.schema.open and FOUND in state:
        rows = close_rows(rows, _compact(state[FOUND]))
    keys = None
    if "identity" in node or "roster" in node:
        if "identity" not in node or "roster" not in node:
            raise NodeError("a node needs both 'identity' and 'roster', or neither, in its node configuration")
        keys = (str(node["identity"]), str(node["roster"]))
    return holder_of(rows, partition, state, budget, keys)


def partition_of(node: Any) -> int | None:
    """Returns the partition that a node's configuration names, if any."""
    if "partition-id" not in node:
        return None
    number = str(node["partition-id"])
    if not (number.isascii() and number.isdigit()):
        raise NodeError("this node's partition-id must be a whole number of at least 0")
    return int(number)


def limits_of(config: RunConfig, node: Any) -> PrivacyBudget:
    """Returns the smaller of the run's and the holder's budget.

    Epsilon and delta are compared separately. Raises NodeError if the node's are not positive numbers,
    or its delta is not less than 1, or if its configuration does not allow the run.
    """
    agreed = {str(node["config-sha256"])} if "config-sha256" in node else None
    require_agreed(config, agreed, by_person=False, pinned="identity" in node or "roster" in node)
    privacy = config.privacy
    try:
        limit = PrivacyBudget(float(node.get("epsilon", privacy.epsilon)), float(node.get("delta", privacy.delta)))
    except (ConfigError, ValueError):
        raise NodeError("this node's epsilon and delta must be positive numbers, and delta less than 1") from None
    return PrivacyBudget(min(privacy.epsilon, limit.epsilon), min(privacy.delta, limit.delta))


@dataclass(frozen=True, eq=False)
class LoadedRows:
    """A holder's own table.

    Attributes:
        codes: (n, d) its rows, placeholders in open columns.
        domain: of the schema.
        schema_hash: of the schema as the holder approved it.
        schema: the holder's own, closed once everything was found.
        own: the rows' own values in open columns.
    """

    codes: npt.NDArray[np.integer]
    domain: Domain
    schema_hash: str
    schema: Schema
    own: OwnRows = NOTHING_OWN


@lru_cache(maxsize=2)
def close_rows(rows: LoadedRows, findings: str) -> LoadedRows:
    """Encodes a holder's rows by the closed schema.

    The schema is closed by what this holder keeps of what was found.
    """
    schema = PrivateColumns(rows.schema).closed(**json.loads(findings))
    return LoadedRows(rows.own.coded(rows.codes, schema, rows.domain), schema.domain, rows.schema_hash, schema)


@lru_cache(maxsize=2)
def load_rows(
    data: str,
    schema_file: str,
    bins: int | None,
    label: str | None,
    key: str | None = None,
    rename: tuple[tuple[str, str], ...] = (),
    *,
    persons: bool = False,
    apart: str | None = None,
) -> LoadedRows:
    """Reads the holder's own rows, encoded by its own schema.

    They are read once per process. `key` is a file with the key of a sealed table, whose rows are decrypted in memory
    only. `rename` has pairs of a column's name in the table and in the schema. Of `persons` there is one record each;
    `apart` is the file that has them, where `data` has their rows.

    Raises:
        NotReady: the schema or the table cannot be used, whatever the cause.
        ConfigError: the run's configuration does not fit the schema.
    """
    from fedsyn.table.data.options import FileOptions

    with _as_not_ready():
        schema, options = Schema.load(schema_file), FileOptions(key_file=key, rename=rename or None)
        schema.require_approved()
    rows: Callable[[], Any] = lambda: data  # noqa: E731
    if apart is not None:
        from fedsyn.table.data.joined import joined_files

        rows = partial(joined_files, apart, data, schema, options, first=True)
    return encoded_rows(rows, schema.adjusted(bins, label), options, persons=persons)


def encoded_rows(
    rows: Callable[[], AnyFrame | str | Path],
    schema: Schema,
    options: Options = None,
    *,
    persons: bool = False,
    coins: np.random.Generator | None = None,
) -> LoadedRows:
    """Returns a holder's own rows, encoded by the run's schema.

    Args:
        rows: gives the table, or a file's path.
        schema: of the rows, as the run has it.
        options: how a file is read.
        persons: make one record of each person.
        coins: of the persons; None: the operating system's.

    Raises:
        NotReady: the table cannot be used, whatever the cause.
    """
    from fedsyn.table.data.alike import require_schema_columns
    from fedsyn.table.data.readers import encode_open_file
    from fedsyn.table.data.records import RecordMaker
    from fedsyn.table.schema.frames import as_frame
    from fedsyn.table.schema.persons import require_records

    with _as_not_ready():
        maker = None
        if persons:
            require_records(schema)
            maker = RecordMaker(schema, np.random.default_rng() if coins is None else coins)
        holding, table = Holding(schema, maker), rows()
        if isinstance(table, str | Path):
            codes, values = encode_open_file(table, schema, options, holding)
        else:
            frame = as_frame(table)
            require_schema_columns({"the table": list(frame.columns)}, schema, files=False)
            block = holding.encoded(frame)
            codes, values = block.codes, block.own
        if maker is not None:
            codes, schema = maker.record().codes, schema.records
    for sentence in alone(holding):  # the node's log may say what the rows hold, a reply may not
        log.warning("%s", sentence)
    return LoadedRows(codes, schema.domain, schema.sha256, schema, values)


@contextmanager
def _as_not_ready() -> Iterator[None]:
    """Turns every error of a holder's own files into `NotReady`.

    One cause must look like another to a server: also which library noticed it, or that memory was short.
    """
    try:
        yield
    except Exception as error:
        raise NotReady("this node's table, or its schema, cannot be used") from error


# What a plain SuperNode and a node refuse, by configuration and agreement, never by a row -----------------------------


def require_resolved(run_config: Mapping[str, Any]) -> None:
    """Refuses a configuration that opens a file when it is read.

    Raises NodeError. A server may not find out which files exist.
    """
    if not is_resolved(run_config):
        raise NodeError("this node holds real rows: it takes a run from 'fedsyn run' only, and opens no file for it")


def require_deployment(engine: object, seed: object) -> None:
    """Refuses all runs but deployments whose noise nobody can foresee.

    Raises NodeError.
    """
    if engine != "deployment":
        raise NodeError("this node holds real rows: the run's runtime.engine must be 'deployment'")
    if seed is not None:
        raise NodeError("this node holds real rows and refuses a seeded run")


def require_all_columns(config: RunConfig) -> None:
    """Refuses columns that are split over holders.

    Raises NodeError.
    """
    if config.federation.columns is not None:
        raise NodeError(
            "this node holds real rows: columns split over holders (federation.columns) are for simulations"
        )


def require_agreed(config: RunConfig, agreed: Collection[str] | None, by_person: bool, pinned: bool) -> None:
    """Refuses a run that protects less than its holder agreed to.

    Raises NodeError. The server makes the configuration.

    Args:
        config: of the run.
        agreed: hashes of the configurations that the holder agreed to; None: any.
        by_person: whether the holder approves each run.
        pinned: whether the node has an identity and a roster.
    """
    parties = config.aggregation.capabilities.parties
    if agreed is not None and config.sha256 not in agreed:
        raise NodeError("this node's holder agreed to other configurations than the run's")
    if parties is not None and agreed is None and not by_person:
        # The parties' keys stand in the configuration, which is the server's until the holder has agreed to it.
        raise NodeError(
            f"this node's holder must agree to {parties.words} of a run with aggregation.protocol: "
            f"{config.aggregation.protocol}: its policy needs configurations, or approval: by person "
            "(a plain SuperNode's --node-config needs config-sha256)"
        )
    if pinned and not config.aggregation.is_signed:
        raise NodeError(
            "this node has an identity and a roster: it takes part in runs with aggregation.protocol: secagg and "
            "aggregation.threat: malicious only, or with protocol: fhe and aggregation.roster"
        )


app = TableApp(client_fn)
