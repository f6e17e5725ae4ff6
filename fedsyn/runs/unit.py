"""Refuses a promise for single rows where persons repeat.

The schema says that they do. It rests on the schema and the configuration alone, which are public, and comes before
anything is charged.
"""

from __future__ import annotations

import math

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.output import counted, first_of
from fedsyn.privacy import accountant_for
from fedsyn.registry import contract_class
from fedsyn.table.schema import Schema
from fedsyn.table.schema.approval import person_columns

# Rows of a person by whom the cost is shown, where the schema does not say how many there may be.
_EXAMPLE = 10


def require_unit(config: RunConfig, schema: Schema) -> None:
    """Refuses `privacy.unit: row` that nobody has written, where persons repeat.

    Args:
        config: of the run.
        schema: of its rows.

    Raises:
        ConfigError: says what epsilon is for the person with the most rows that the schema allows; or a constraint
            compares a row with the next one of its person, and the run knows single rows only.
    """
    privacy, persons = config.privacy, schema.rows.persons
    across = schema.rows.compiled.across
    if privacy.unit != "person" and across:
        raise ConfigError(
            f"privacy.unit: {privacy.unit}: constraint '{across[0].text}' compares a row with the next one of its "
            "person, and such a run makes single rows; write privacy.unit: person, or take the constraint out of the "
            "schema"
        )
    if privacy.unit != "row" or "unit" in privacy.model_fields_set:
        return
    names = person_columns(schema.rows)
    if not names or (persons is not None and persons.most_rows == 1):
        return
    most = _EXAMPLE if persons is None else persons.most_rows
    whom = f"somebody with {counted(most, 'row')}" + (", say" if persons is None else ", as many as the schema allows")
    key = (
        "" if persons is not None else f" and persons: {{id: {names[0]}, most_rows: N, constant: [...]}} in the schema"
    )
    raise ConfigError(
        f"privacy.unit: the schema says that a person may have several rows ({first_of(names, 3)}), and epsilon "
        f"{privacy.epsilon:g} is for one row: for {whom}, it is {of_rows(config, most)}. Write privacy.unit: person"
        f"{key} to protect persons with all rows, or privacy.unit: row to run for single rows all the same"
    )


def of_rows(config: RunConfig, rows: int) -> str:
    """Returns words for the epsilon of somebody with some rows.

    Between tables with and without them lie as many tables as there are rows. Each moves what is released by at most
    the stated sensitivity, so all of them together move it by k times as much: rho and mu² are k² times those of a row
    (`fedsyn.privacy.unit`). Where the run's accountant is of neither unit, k steps of (epsilon, delta) are taken.
    """
    privacy, name = config.privacy, contract_class(config.mechanism.name).accountant
    if name in ("zcdp", "gaussian"):
        accountant = accountant_for(name, privacy.budget)
        epsilon = accountant.epsilon(rows**2 * accountant.capacity, privacy.delta)
        return f"{epsilon:.4g} at delta {privacy.delta:g} ({rows:,} rows cost {rows:,}^2 times the rho of one)"
    # k steps: delta (1 + e^epsilon + ... + e^((k - 1) epsilon)), in logarithms.
    grown = rows * privacy.epsilon - math.log(math.expm1(privacy.epsilon)) if privacy.epsilon < 700 else math.inf
    log_delta = math.log(privacy.delta) + grown + math.log1p(-math.exp(-rows * privacy.epsilon))
    if log_delta >= 0.0:
        return "no promise at all"
    return f"{rows * privacy.epsilon:.4g} at delta {math.exp(log_delta):.3g}"
