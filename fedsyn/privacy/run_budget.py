"""A run's budget, and its parts' largest costs for one row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedsyn.privacy.accountant import Accountant
from fedsyn.privacy.budget import PrivacyBudget
from fedsyn.privacy.unit import ROW, Unit


@dataclass(frozen=True)
class RunBudget:
    """A run's budget: guarantee, accountant, and parts.

    A part is an amount of rho, and says what ONE ROW may pay; a unit of c rows pays c squared times as much, which is
    why every part is that much smaller. What is paid first is `sizes`, then what finding a schema costs, then the
    mechanism, and last the evaluation:

        rho = table + evaluation,  table = sizes + mechanism,  finding = schema_share of the table at most.

    Attributes:
        guarantee: epsilon and delta, promised to the unit.
        accountant: how costs add up; its capacity is the whole budget.
        unit: whose presence is hidden.
        sizes_share: share of the table for the clients' row counts, where they are private.
        schema_share: share of what is left after the sizes, for finding what is private of the schema.
        evaluation_share: share of the whole for asking the holders how good the table is.
        public_sizes: whether row counts are published, and cost nothing.
    """

    guarantee: PrivacyBudget
    accountant: Accountant
    unit: Unit = ROW
    sizes_share: float = 0.0
    schema_share: float = 0.0
    evaluation_share: float = 0.0
    public_sizes: bool = False

    @cached_property
    def rho(self) -> float:
        """The whole budget."""
        return self.accountant.rho / self.unit.factor

    @property
    def table(self) -> float:
        """The budget of the table: all but the evaluation's part."""
        return self.rho * (1.0 - self.evaluation_share)

    @property
    def sizes(self) -> float:
        """The budget of the clients' row counts, where they are private."""
        return self.sizes_share * self.table

    @property
    def finding(self) -> float:
        """Most that finding a schema may cost.

        It is reached if row counts cost nothing.
        """
        return self.schema_share * self.table

    @property
    def mechanism(self) -> float:
        """Most that the mechanism may cost.

        Finding a schema leaves it less.
        """
        return self.table if self.public_sizes else self.table * (1.0 - self.sizes_share)

    @property
    def evaluation(self) -> float:
        """The budget of the evaluation."""
        return self.rho * self.evaluation_share
