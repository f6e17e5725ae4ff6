"""Names that an author of a mechanism imports.

The bases of both halves, what they yield and say, and small helpers.

    from fedsyn.mechanism import Contract, MechanismStrategy, Step, Sum, SumRequest, TableClient, answers

docs/adding_a_mechanism.md has a whole mechanism. What belongs to the server half alone is loaded when it is used, so
that a data holder's machine stays without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import Field as Field

from fedsyn.aggregation import Contribution as Contribution
from fedsyn.config import RunConfig as RunConfig
from fedsyn.domain import Clique as Clique
from fedsyn.domain import Domain as Domain
from fedsyn.errors import ConfigError as ConfigError
from fedsyn.errors import ProtocolError as ProtocolError
from fedsyn.inference import Measurement as Measurement
from fedsyn.inference import Model as Model
from fedsyn.inference import estimate as estimate
from fedsyn.privacy import EXPONENTIAL as EXPONENTIAL
from fedsyn.privacy import GAUSSIAN as GAUSSIAN
from fedsyn.privacy import PrivacyBudget as PrivacyBudget
from fedsyn.privacy import PrivacyStatement as PrivacyStatement
from fedsyn.privacy import Release as Release
from fedsyn.privacy import epsilon_for_rho as epsilon_for_rho
from fedsyn.privacy import gaussian_rho as gaussian_rho
from fedsyn.privacy import sigma_for_rho as sigma_for_rho
from fedsyn.privacy.release import COUNTS as COUNTS
from fedsyn.privacy.release import TWICE as TWICE
from fedsyn.protocol.client import Answer as Answer
from fedsyn.protocol.client import Marginals as Marginals
from fedsyn.protocol.client import OneWay as OneWay
from fedsyn.protocol.client import TableClient as TableClient
from fedsyn.protocol.client import answers as answers
from fedsyn.protocol.client import indices as indices
from fedsyn.protocol.client import noisy_arrays as noisy_arrays
from fedsyn.protocol.contract import Contract as Contract
from fedsyn.protocol.contract import require as require
from fedsyn.protocol.plan import Step as Step
from fedsyn.protocol.plan import largest_measured as largest_measured
from fedsyn.protocol.plan import most_cells as most_cells
from fedsyn.protocol.stored import STORE_REQUESTS as STORE_REQUESTS
from fedsyn.protocol.stored import Answers as Answers
from fedsyn.protocol.stored import OpenMarginals as OpenMarginals
from fedsyn.protocol.stored import OpenOneWay as OpenOneWay
from fedsyn.protocol.stored import SelectClique as SelectClique
from fedsyn.selection.views import ModelView as ModelView
from fedsyn.selection.views import pack_model as pack_model
from fedsyn.settings import Node as Node
from fedsyn.wire.envelope import Arrays as Arrays
from fedsyn.wire.envelope import Reply as Reply
from fedsyn.wire.envelope import check_message as check_message
from fedsyn.wire.holder import Call as Call
from fedsyn.wire.requests import AnyCandidates as AnyCandidates
from fedsyn.wire.requests import Ask as Ask
from fedsyn.wire.requests import AskRequest as AskRequest
from fedsyn.wire.requests import CandidateIndices as CandidateIndices
from fedsyn.wire.requests import Choose as Choose
from fedsyn.wire.requests import Deal as Deal
from fedsyn.wire.requests import Layout as Layout
from fedsyn.wire.requests import Open as Open
from fedsyn.wire.requests import PairIndices as PairIndices
from fedsyn.wire.requests import Positive as Positive
from fedsyn.wire.requests import Request as Request
from fedsyn.wire.requests import SomeCandidates as SomeCandidates
from fedsyn.wire.requests import Sum as Sum
from fedsyn.wire.requests import Summed as Summed
from fedsyn.wire.requests import SumRequest as SumRequest

if TYPE_CHECKING:
    from fedsyn.protocol.strategy import MechanismStrategy as MechanismStrategy
    from fedsyn.protocol.strategy import Protocol as Protocol
    from fedsyn.protocol.strategy import Steps as Steps

_OF_THE_SERVER = ("MechanismStrategy", "Protocol", "Steps")


def __getattr__(name: str) -> Any:
    if name in _OF_THE_SERVER:
        return getattr(import_module("fedsyn.protocol.strategy"), name)
    raise AttributeError(f"module 'fedsyn.mechanism' has no name '{name}'")
