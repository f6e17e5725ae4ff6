"""What an author of a mechanism imports: the bases of both halves, what they yield and say, and small helpers.

    from fedsyn.mechanism import Contract, MechanismStrategy, Step, Sum, SumRequest, TableClient, answers

docs/adding_a_mechanism.md has a whole mechanism. What belongs to the server half alone is loaded when it is used, so
that a data holder's machine stays without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedsyn.aggregation import Contribution
from fedsyn.config import RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    PrivacyBudget,
    PrivacyStatement,
    Release,
    epsilon_for_rho,
    gaussian_rho,
    sigma_for_rho,
)
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.protocol.client import Answer, Marginals, OneWay, TableClient, answers, indices
from fedsyn.protocol.contract import Contract, require
from fedsyn.protocol.plan import Step, largest_measured, most_cells
from fedsyn.protocol.stored import STORE_REQUESTS, Answers, OpenMarginals, OpenOneWay, SelectClique
from fedsyn.selection.views import ModelView, pack_model
from fedsyn.settings import Node
from fedsyn.wire.envelope import Arrays, Reply, check_message
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import (
    AnyCandidates,
    Ask,
    AskRequest,
    CandidateIndices,
    Choose,
    Deal,
    Layout,
    Open,
    PairIndices,
    Positive,
    Request,
    SomeCandidates,
    Sum,
    Summed,
    SumRequest,
)

if TYPE_CHECKING:
    from fedsyn.protocol.strategy import MechanismStrategy, Protocol, Steps

_OF_THE_SERVER = ("MechanismStrategy", "Protocol", "Steps")


def __getattr__(name: str) -> Any:
    if name in _OF_THE_SERVER:
        return getattr(import_module("fedsyn.protocol.strategy"), name)
    raise AttributeError(f"module 'fedsyn.mechanism' has no name '{name}'")


__all__ = [
    "COUNTS",
    "EXPONENTIAL",
    "GAUSSIAN",
    "STORE_REQUESTS",
    "TWICE",
    "Answer",
    "Answers",
    "AnyCandidates",
    "Arrays",
    "Ask",
    "AskRequest",
    "Call",
    "CandidateIndices",
    "Choose",
    "Clique",
    "ConfigError",
    "Contract",
    "Contribution",
    "Deal",
    "Domain",
    "Field",
    "Layout",
    "Marginals",
    "Measurement",
    "MechanismStrategy",
    "Model",
    "ModelView",
    "Node",
    "OneWay",
    "Open",
    "OpenMarginals",
    "OpenOneWay",
    "PairIndices",
    "Positive",
    "PrivacyBudget",
    "PrivacyStatement",
    "Protocol",
    "ProtocolError",
    "Release",
    "Reply",
    "Request",
    "RunConfig",
    "SelectClique",
    "SomeCandidates",
    "Step",
    "Steps",
    "Sum",
    "SumRequest",
    "Summed",
    "TableClient",
    "answers",
    "check_message",
    "epsilon_for_rho",
    "estimate",
    "gaussian_rho",
    "indices",
    "largest_measured",
    "most_cells",
    "pack_model",
    "require",
    "sigma_for_rho",
]
