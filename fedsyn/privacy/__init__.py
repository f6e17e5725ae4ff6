"""Budget, accounting, ledger and noise: the only place where privacy is spent."""

from fedsyn.privacy.accountant import (
    Accountant,
    GaussianAccountant,
    RenyiAccountant,
    ZcdpAccountant,
    accountant_for,
)
from fedsyn.privacy.budget import (
    PrivacyBudget,
    Scales,
    divide,
    epsilon_for_rho,
    exponential_rho,
    gaussian_rho,
    sigma_for_rho,
)
from fedsyn.privacy.conversion import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from fedsyn.privacy.distributed import DistributedNoise
from fedsyn.privacy.ledger import Ledger, sampler_of
from fedsyn.privacy.release import EXPONENTIAL, GAUSSIAN, SAMPLED, Release
from fedsyn.privacy.renyi import best_order, multiplier_for, renyi_epsilon, sampled_rdp
from fedsyn.privacy.selection import SelectionNoise
from fedsyn.privacy.statement import ADJACENCY, UNIT, PrivacyStatement
from fedsyn.privacy.unit import AUTO, ROW, ROW_COUNTS, UNCAPPED, ClientUnit, Unit, kept_rows, unit_from_dict

__all__ = [
    "ADJACENCY",
    "AUTO",
    "EXPONENTIAL",
    "GAUSSIAN",
    "ROW",
    "ROW_COUNTS",
    "SAMPLED",
    "UNCAPPED",
    "UNIT",
    "Accountant",
    "ClientUnit",
    "DistributedNoise",
    "GaussianAccountant",
    "Ledger",
    "PrivacyBudget",
    "PrivacyStatement",
    "Release",
    "RenyiAccountant",
    "Scales",
    "SelectionNoise",
    "Unit",
    "ZcdpAccountant",
    "accountant_for",
    "best_order",
    "divide",
    "epsilon_for_rho",
    "exponential_rho",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_rho",
    "kept_rows",
    "multiplier_for",
    "renyi_epsilon",
    "sampled_rdp",
    "sampler_of",
    "sigma_for_rho",
    "unit_from_dict",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]
