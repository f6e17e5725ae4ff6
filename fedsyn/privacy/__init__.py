"""Budget, accounting, ledger and noise: the only place where privacy is spent."""

from fedsyn.privacy.accountant import accountant_for
from fedsyn.privacy.budget import PrivacyBudget, epsilon_for_rho, exponential_rho, gaussian_rho, sigma_for_rho
from fedsyn.privacy.conversion import zcdp_epsilon
from fedsyn.privacy.distributed import DistributedNoise
from fedsyn.privacy.ledger import Ledger
from fedsyn.privacy.release import EXPONENTIAL, GAUSSIAN, SAMPLED, Release
from fedsyn.privacy.run_budget import RunBudget
from fedsyn.privacy.shared_choice import SelectionNoise
from fedsyn.privacy.statement import PrivacyStatement
from fedsyn.privacy.unit import Unit

__all__ = [
    "EXPONENTIAL",
    "GAUSSIAN",
    "SAMPLED",
    "DistributedNoise",
    "Ledger",
    "PrivacyBudget",
    "PrivacyStatement",
    "Release",
    "RunBudget",
    "SelectionNoise",
    "Unit",
    "accountant_for",
    "epsilon_for_rho",
    "exponential_rho",
    "gaussian_rho",
    "sigma_for_rho",
    "zcdp_epsilon",
]
