"""What a configuration cannot ask of a mechanism: split or private columns, evaluation without sums, units."""

from __future__ import annotations

from fedsyn.capabilities import CAPABILITIES
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, nearest
from fedsyn.inference.capacity import require_room
from fedsyn.table.counting.workload import Workload
from fedsyn.table.schema import Schema


def check_columns(config: RunConfig, domain: Domain, workload: Workload) -> None:
    """Refuses encrypted columns that do not make the workload; ConfigError.

    Raises:
        ConfigError: columns that are split over holders are not those of the schema, or a clique has more than the two
            attributes that one product of columns counts.
    """
    columns = config.federation.columns
    if columns is not None:
        named = {name for held in columns for name in held}
        unknown, missing = sorted(named - set(domain)), sorted(set(domain) - named)
        if unknown:
            raise ConfigError(
                f"federation.columns: the schema has no column '{unknown[0]}'{nearest(unknown[0], domain)}"
            )
        if missing:
            raise ConfigError(f"federation.columns: no client holds column '{missing[0]}'")
    if config.aggregation.encrypts_columns:
        large = [clique for clique in workload.cliques if len(clique) > 2]
        if large:
            raise ConfigError(
                f"aggregation.fhe.compute: '{config.fhe.compute}' counts pairs of columns, and the workload has "
                f"{' x '.join(large[0])}: set workload.degree: 2"
            )


def check_open(config: RunConfig, schema: Schema) -> None:
    """ConfigError where a schema's constraints do not fit into the model, or its private values cannot be found."""
    require_room(schema.domain, config.inference)
    if not schema.open:
        return
    names = list(schema.open)
    what = f"data.schema: '{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    what += " have private values, which are found by noisy sums of all clients' counts"
    if not config.aggregation.capabilities.finds_bins:
        allowed = ", ".join(one.name for one in CAPABILITIES.values() if one.finds_bins)
        raise ConfigError(f"{what}; aggregation.protocol: {config.aggregation.protocol} forms none; allowed: {allowed}")
    if config.federation.columns is not None:
        raise ConfigError(f"{what}; columns that are split over holders (federation.columns) have none")


def check_federated_evaluation(config: RunConfig, store: bool) -> None:
    """ConfigError where the holders cannot be asked how good the table is: that takes a sum over whole rows."""
    if not config.evaluation.federated:
        return
    if store and not config.aggregation.capabilities.mixes:
        raise ConfigError(
            f"evaluation.federated: asks for a noisy sum, and '{config.mechanism.name}' under aggregation.protocol: "
            f"{config.aggregation.protocol} keeps a store, which forms none; leave it out, or use a mechanism of sums"
        )
    if config.federation.columns is not None:
        raise ConfigError("evaluation.federated: needs whole rows at each holder; leave out federation.columns")


def check_unit(config: RunConfig, store: bool, central: bool, not_private: str, accountant: str) -> None:
    """Refuses a whole client as the unit where what is released of it is not derived; ConfigError says why.

    Args:
        config: of the run.
        store: whether the mechanism keeps a store.
        central: whether there is one holder.
        not_private: why it is not private at all; else empty.
        accountant: the name of its contract's.
    """
    if config.privacy.unit == "row":
        return
    reasons = {
        "keeps a store of exact answers, whose parties account for single rows": store,
        "has one holder of all rows: there is no client to hide among others": central,
        f"protects nobody: {not_private}": bool(not_private),
        "has an accountant whose costs are those of single rows": accountant not in ("zcdp", "gaussian"),
        "can form its sums under aggregation.protocol: plain or secagg; the crypto party of fhe accounts for single "
        "rows": config.privacy.unit not in config.aggregation.capabilities.units,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(f"privacy.unit: client: mechanism '{config.mechanism.name}' {reason}")
