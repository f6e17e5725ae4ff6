"""The class `fedsyn.FlowerApp`.

It gives both halves of a mechanism to a ServerApp and a ClientApp of one's own.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, NodeError, ProtocolError
from fedsyn.flower import FLOWER_LOG, ArrayRecord, Context, Message, NumPyClient
from fedsyn.flower.direct import answered
from fedsyn.flower.state import read_state, write_state
from fedsyn.front.synthesizer import schema_of
from fedsyn.inference import AnyModel, read_model
from fedsyn.loading import parse_config, written_out
from fedsyn.output import counted
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class, strategy_class
from fedsyn.runs.holders import LoadedRows, client_of, encoded_rows, limits_of, partition_of
from fedsyn.runs.unit import require_unit
from fedsyn.table.schema import Schema
from fedsyn.table.schema.persons import require_records
from fedsyn.wire.holder import Holder

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.protocol.strategy import MechanismStrategy
    from fedsyn.table.schema.frames import AnyFrame

log = logging.getLogger("fedsyn")
_LIMITS = ("max_participations", "minimum_cohort", "timeout", "connect_timeout", "on_loss")
#: Nodes of a configuration that a FlowerApp has a use for, and the keys of them; None: every key.
_USED: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("format", "mechanism", "privacy", "workload", "aggregation", "inference")),
    "data": ("bins", "label"),
    "federation": ("clients", "sampling_rate", *_LIMITS),
    "runtime": ("seed",),
}
#: Cells of encoded rows that a process keeps between messages: in a simulation it answers for many SuperNodes.
_MOST_CELLS = 10**8


class FlowerApp:
    """Both halves of a mechanism, for one's own Flower app.

    A ServerApp starts `strategy()` on its Grid, the `train` function of a ClientApp returns `answer(message, context)`
    (docs/flower.md). A SuperNode keeps no ledger for life: epsilon is that of the run. Nodes of `fedsyn` have one.

    Args:
        config: keys of a configuration, or its file. It names no rows.
        schema: the approved description of the columns: a `Schema`, its plain data, or the path of its YAML file.
        rows: gives a SuperNode's own rows from its context, a DataFrame or a file's path; called once in a run and
            process as long as the rows find room.

    Raises:
        ConfigError: the configuration is bad, or has a key that a FlowerApp has no use for; or the schema leaves
            something to be found in the run.
        SchemaError: the schema is not approved, or does not say who a person is, whom the run protects.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Path,
        schema: Schema | Mapping[str, Any] | str | Path,
        rows: Callable[[Context], AnyFrame | str | Path],
    ) -> None:
        self.config = _own_config(config)
        rows_schema = schema_of(schema).adjusted(self.config.data.bins, self.config.data.label)
        rows_schema.require_approved()
        require_unit(self.config, rows_schema)
        if rows_schema.open:
            raise ConfigError(
                f"schema: {', '.join(rows_schema.open)} would have to be found in the run, and a FlowerApp finds "
                "nothing; state bounds, bins and categories, or use `fedsyn run`"
            )
        self._of_persons = self.config.privacy.unit == "person"
        if self._of_persons:
            require_records(rows_schema)
        self.schema = rows_schema.records if self._of_persons else rows_schema
        self._contract = contract_class(self.config.mechanism.name)(self.config, self.schema.domain)
        self._rows_of = rows
        self._rows: OrderedDict[tuple[int, int], LoadedRows] = OrderedDict()
        for handler in FLOWER_LOG.handlers:  # why a node does not answer stands in its own log alone
            if handler not in log.handlers:
                log.addHandler(handler)

    def strategy(self) -> MechanismStrategy:
        """Returns a new server half, a Flower `Strategy` for one `start`."""
        made: MechanismStrategy = strategy_class(self.config.mechanism.name)(
            self.config, self.schema.domain, self.schema.sha256, randomness=Randomness(self.config.runtime.seed)
        )
        return made

    def answer(self, message: Message, context: Context) -> Message:
        """Returns a SuperNode's reply to a message of the strategy.

        No exception leaves it: a refusal does, without a word about a row, and the cause stands in the node's log.
        """
        return answered(self._client, message, context)

    def table(self, arrays: ArrayRecord, rows: int | None = None) -> pd.DataFrame:
        """Draws synthetic rows from a model's arrays.

        They are those of a `Result`, or what an `evaluate_fn` gets. It costs nothing, however often it is done.

        Args:
            arrays: of the model.
            rows: how many; None: as many as the model estimates that there are.
        """
        from fedsyn.front.several import frame_of
        from fedsyn.runs.synthesis import decoding, expected_rows

        model = self._model(arrays)
        number = expected_rows(model) if rows is None else rows
        return frame_of(decoding(self.schema, model), model, number, Randomness(self.config.runtime.seed))

    def _model(self, arrays: ArrayRecord) -> AnyModel:
        try:
            return read_model(self.schema.domain, {name: array.numpy() for name, array in arrays.items()})
        except ProtocolError as error:
            raise ConfigError(f"table: expected the arrays of this app's strategy ({error})") from None

    def _client(self, context: Context) -> NumPyClient:
        """Returns the client half of a SuperNode, with its rows."""
        node, seed = context.node_config, self.config.runtime.seed
        wanted = 1 if self._contract.central else self.config.federation.clients
        there = int(node.get("num-partitions", wanted))
        if there != wanted:
            nodes, why = counted(there, "SuperNode"), "mechanism" if self._contract.central else "federation.clients"
            raise NodeError(f"the simulation has {nodes}, and the run {counted(wanted, 'holder')} ({why})")
        if seed is not None and not {"partition-id", "num-partitions"} <= node.keys():
            raise NodeError("a seeded run is for simulations, and this node is not in one")
        partition, budget = partition_of(node), limits_of(self.config, node)
        text, rows = read_state(context), self._loaded(context)
        facts = (partition, rows.codes, rows.domain, rows.schema_hash, Randomness(seed))
        holder = Holder(*facts, json.loads(text) if text else {}, budget)
        holder.save = lambda changed: write_state(context, json.dumps(changed, separators=(",", ":")))
        client: NumPyClient = client_of(self.config, holder)
        return client

    def _loaded(self, context: Context) -> LoadedRows:
        """Returns the node's encoded rows.

        They are the same in every message of a run.
        """
        key = (context.run_id, context.node_id)
        if key not in self._rows:
            # A simulation's persons have coins of the seed, and holders' own those of the operating system.
            coins = Randomness(self.config.data.split_seed).ordinary("records", partition_of(context.node_config) or 0)
            self._rows[key] = encoded_rows(
                lambda: self._rows_of(context), self.schema.rows, persons=self._of_persons, coins=coins
            )
        self._rows.move_to_end(key)
        while len(self._rows) > 1 and sum(each.codes.size for each in self._rows.values()) > _MOST_CELLS:
            self._rows.popitem(last=False)
        return self._rows[key]


def _own_config(config: Mapping[str, Any] | str | Path) -> RunConfig:
    """Returns the configuration of a run whose rows a function gives.

    Raises ConfigError for a key that would be ignored.
    """
    if isinstance(config, str | Path):
        where, document = str(config), written_out(yamlio.read_mapping(config), str(config))
    elif isinstance(config, Mapping):
        where, document = "config", written_out(dict(config), "config")
    else:
        raise ConfigError(f"config: expected a dictionary or a path, found {type(config).__name__}")
    data = {"source": "rows", **(document.get("data") or {})}
    checked = parse_config({"evaluation": [], **document, "data": data}, where)
    for name, node in document.items():
        used = _USED.get(name, ())
        unused = [key for key in node or () if key not in used] if used and isinstance(node, Mapping) else []
        if unused or used == ():
            raise ConfigError(
                f"{where}: a FlowerApp has no use for '{'.'.join([name, *unused[:1]])}'; leave it out (rows come from "
                "its function, SuperNodes from Flower, and what is measured on the table from start(evaluate_fn=...))"
            )
    node, parties = checked.aggregation, checked.aggregation.capabilities.parties
    if node.is_signed or parties is not None:
        raise ConfigError(
            f"{where}: aggregation.protocol: {node.protocol} with threat: {node.threat} needs keys of "
            f"{'holders' if parties is None else parties.words} that a FlowerApp does not have; `fedsyn run` has them"
        )
    return checked
