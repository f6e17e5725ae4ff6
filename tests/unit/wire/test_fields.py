"""No field by trust: the register of `docs/site/fields.py` against the fields that are found in the code.

Nothing here lists a message by hand: records of requests are found as subclasses, what nodes and parties get as the
types of what they are called with, JSON keys in what is written, arrays of secure sums in messages of real runs.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import fedsyn.protocol.finding  # noqa: F401 - its records are requests, too
from docs.site.fields import REGISTER, WORD
from fedsyn.aggregation.secagg import facts as secagg
from fedsyn.flower.fleet import Messages
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.node.answering import Answering
from fedsyn.protocol.client import TableClient
from fedsyn.registry import client_class, mechanisms
from fedsyn.runs.run_config import run_config_of
from fedsyn.stores.crypto import CryptoKey
from fedsyn.stores.parties import messages
from fedsyn.stores.parties.crypto import KeyHolder
from fedsyn.stores.parties.interface import Announcement, TotalOrder
from fedsyn.stores.parties.party import Party
from fedsyn.stores.parties.sealing import DealFacts, open_deal
from fedsyn.stores.parties.serving import Serving
from fedsyn.stores.parties.steps import steps_of
from fedsyn.wire.envelope import ENVELOPE, Envelope, Stage, SumSpec
from fedsyn.wire.refusals import Kind, Refusal
from fedsyn.wire.requests import Request
from support.parties_bench import Bench, announced, mpc_config

ROOT = Path(__file__).resolve().parents[3]
SENT = ("ask", "sum", "deal")  # kinds of requests that reach a client


def registered(message: str) -> list[str]:
    return [field for line in REGISTER[message] for field in line.fields]


# What is found in the code -------------------------------------------------------------------------------------------


def below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


@cache
def records() -> tuple[type[Request], ...]:
    """Every record of a request that reaches a client: fedsyn's own, and those of all registered mechanisms."""
    for name in mechanisms():
        client_class(name)
    found = [each for each in below(Request) if hasattr(each, "name") and each.__module__.startswith("fedsyn.")]
    return tuple(each for each in dict.fromkeys(found) if each.kind in SENT)


def called(record: type) -> str:
    return f"{record.__module__.rpartition('.')[2]}.{record.__name__}"


def loads_arrays(source: str) -> bool:
    """Whether code reads `arrays`, other than to hand them on to a layout."""
    tree = ast.parse(textwrap.dedent(source))
    handed = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "layout"
        for argument in node.args
        for part in ast.walk(argument)
    }
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and (node.id if isinstance(node, ast.Name) else node.attr) == "arrays"
        and id(node) not in handed
        for node in ast.walk(tree)
    )


@cache
def brings_arrays(record: type[Request]) -> bool:
    """Whether the record, or a client's answer to it, reads arrays of the message."""
    own = [kind for kind in record.__mro__ if kind.__module__.startswith("fedsyn.") and issubclass(kind, Request)]
    answers = {
        getattr(client_class(name), method)
        for name in mechanisms()
        for request, method in client_class(name)._methods.items()
        if client_class(name).requests[request] is record
    }
    kinds = [kind for kind in own if kind.__module__ != "fedsyn.wire.requests"]
    return any(loads_arrays(inspect.getsource(each)) for each in (*kinds, *answers))


def nested(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Models inside the fields of a model."""
    for field in model.model_fields.values():
        for part in parts_of(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield part
                yield from nested(part)


def parts_of(hint: Any) -> Iterator[Any]:
    yield hint
    for each in typing.get_args(hint):
        yield from parts_of(each)


def request_fields() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records():
        found[called(record)] = [*record.model_fields, *(["arrays"] if brings_arrays(record) else [])]
        for inner in nested(record):
            found[called(inner)] = list(inner.model_fields)
    return found


def messages_in(function: Any) -> Iterator[type]:
    """The dataclasses that a function is called with, and those in their fields, but for a run's configuration."""
    hints = typing.get_type_hints(function, vars(inspect.getmodule(function)) if inspect.getmodule(function) else None)
    hints.pop("return", None)
    for hint in hints.values():
        for part in parts_of(hint):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                yield part
                for inner in dataclasses.fields(part):
                    kind = typing.get_type_hints(part).get(inner.name)
                    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__name__ == "ChoiceTerms":
                        yield kind


def hints_of(function: Any) -> dict[str, Any]:
    """What a step is called with."""
    hints = typing.get_type_hints(function, vars(inspect.getmodule(function)))
    hints.pop("return", None)
    return hints


def json_keys(message: bytes) -> set[str]:
    return set(messages.parts_of(message)[0])


def dataclass_fields() -> dict[str, list[str]]:
    """What the link, the worker and the parties get, by the types that they are called with."""
    incoming = typing.get_type_hints(Messages.receive)["return"]
    kinds = {incoming, *messages_in(Answering.answer)}
    for party in (Party, KeyHolder):
        for step in steps_of(party).values():
            kinds |= set(messages_in(step.__wrapped__))
    found = {kind.__name__: [field.name for field in dataclasses.fields(kind)] for kind in kinds}
    found[DealFacts.__name__] = [field.name for field in dataclasses.fields(DealFacts)]
    assert "facts" in {field.name for field in dataclasses.fields(typing.get_type_hints(open_deal)["return"])}
    # An announcement travels as JSON, where a domain is two fields.
    travels, _ = messages.parts_of(messages.pack(Announcement, announced(mpc_config())))
    found["Announcement"] = [*travels.pop("domain"), *travels]
    return found


def envelope_fields() -> dict[str, list[str]]:
    whole = Envelope("x", "sum", 1, "0", {}, 1, SumSpec(((1,),), 1.0, 1.0, 1), Stage("masked", 0, "r"))
    written = json.loads(str(whole.to_scalars()[ENVELOPE]))
    assert len(written) == len(dataclasses.fields(Envelope))
    return {"Envelope": list(written), "SumSpec": list(written["sum"]), "Stage": list(written["stage"])}


def refusal_fields() -> dict[str, list[str]]:
    (answer,) = Refusal(Kind.BUSY, "x").scalars.values()
    return {"Refusal": [key for key in json.loads(answer) if key != "ok"]}


def other_fields() -> dict[str, list[str]]:
    """What has no type of its own: a submission, a call of a service, what the parties tell each other."""
    submitted = run_config_of(config_of("distributed_aim", 3))
    _, _, *call = inspect.signature(Serving.call).parameters
    talks = [
        name
        for name, method in vars(Party).items()
        if callable(method) and "_lines.exchange" in inspect.getsource(inspect.unwrap(method))
    ]
    brought = [
        name
        for kind in (Party, KeyHolder)
        for step in steps_of(kind).values()
        for name, hint in hints_of(step.__wrapped__).items()
        if not any(dataclasses.is_dataclass(part) for part in parts_of(hint))
    ]
    return {
        "brought to a party": [*dict.fromkeys(brought)],
        "run configuration": list(submitted),
        "call": [*call, "version"],
        "lines between parties": [*talks, "session"],
    }


# The arrays of messages ----------------------------------------------------------------------------------------------

TABLE = awkward_table("missing_values")


def recorded(monkeypatch: pytest.MonkeyPatch, mechanism: str, clients: int, **nodes: Any) -> list[tuple[Envelope, int]]:
    """(envelope, number of arrays) of every message that clients get in a run."""
    seen: list[tuple[Envelope, int]] = []
    real = TableClient.fit

    def fit(self: TableClient, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        seen.append((Envelope.from_scalars(config), len(parameters)))
        return real(self, parameters, config)

    monkeypatch.setattr(TableClient, "fit", fit)
    options = nodes.pop("options", {"rounds": 1})
    federation = Federation(TABLE, tuple(TABLE.encode()[k::clients] for k in range(clients)))
    finished(execute(config_of(mechanism, clients, options, **nodes), federation))
    return seen


STAGES = (secagg.ENROL, secagg.DEAL, secagg.MASKED, secagg.UNMASK, secagg.RECOVER)


def test_every_array_of_a_secure_sum_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the malicious model, whose messages have all that the others have, and signatures."""
    aggregation = {"protocol": "secagg", "noise": "distributed", "threat": "malicious", "dropout": 0.0}
    seen = recorded(monkeypatch, "fed_naive_bayes", 8, aggregation=aggregation)
    found = {e.stage.name: count - e.stage.skip for e, count in seen if e.stage is not None}
    assert set(found) >= set(STAGES) - {secagg.RECOVER}
    for stage, count in found.items():
        assert len(registered(f"{stage} (secagg)")) == count, stage


@pytest.mark.parametrize("mechanism", ["distaim"])
def test_every_array_of_a_request_to_deal_has_a_line(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = recorded(monkeypatch, mechanism, 3, aggregation={"protocol": "mpc", "noise": "distributed"})
    assert {count for e, count in seen if e.kind == "deal"} == {len(registered("deal (mpc)"))}
    assert len(registered("sum (fhe)")) == CryptoKey.invited == len(registered("deal (fhe)")) - 1


def test_orders_are_written_with_no_other_keys_than_their_types_have() -> None:
    bench = Bench()
    bench.deal()
    found = dataclass_fields()
    total = TotalOrder(0, "measure", 1, 4.0, 1.0, 1, 40, 4)
    for order in (bench.choice(), bench.opening(), total):
        known = {*found[type(order).__name__], *found["ChoiceTerms"]}
        assert json_keys(messages.pack(type(order), order)) <= known


# The register --------------------------------------------------------------------------------------------------------


def all_fields() -> dict[str, list[str]]:
    found = {**request_fields(), **dataclass_fields(), **envelope_fields(), **refusal_fields(), **other_fields()}
    found |= {f"{stage} (secagg)": registered(f"{stage} (secagg)") for stage in STAGES}  # counted above
    return found | {name: registered(name) for name in ("deal (mpc)", "deal (fhe)", "sum (fhe)")}


def differences(found: Mapping[str, Sequence[str]]) -> list[str]:
    """What the code has and the register has not, or the other way round."""
    names = sorted(set(found) ^ set(REGISTER))
    both = (name for name in found if name in REGISTER and sorted(registered(name)) != sorted(found[name]))
    return [*names, *(f"{name}: {sorted(set(found[name]) ^ set(registered(name)))}" for name in both)]


def test_every_field_of_every_message_has_one_line() -> None:
    assert differences(all_fields()) == []


def test_a_field_more_or_less_is_found() -> None:
    found = all_fields()
    assert differences({**found, "ChoiceTerms": [*found["ChoiceTerms"], "more"]}) == ["ChoiceTerms: ['more']"]
    assert differences({**found, "SumSpec": found["SumSpec"][1:]}) == [f"SumSpec: {found['SumSpec'][:1]}"]
    assert differences({**found, "flaim.Another": ["x"]}) == ["flaim.Another"]
    assert differences({name: own for name, own in found.items() if name != "DecryptionQuery"}) == ["DecryptionQuery"]


def test_the_finders_find() -> None:
    assert loads_arrays("def f(self, call):\n    return self.view(call.arrays)")
    assert not loads_arrays("def f(self, call):\n    return self.marginals(call.request.layout(self, call.arrays))")
    types = {
        "DecryptionQuery",
        "Sums",
        "ChooseOrder",
        "OpenOrder",
        "TotalOrder",
        "ChoiceTerms",
        "DealPart",
        "Task",
        "Incoming",
    }
    assert types <= set(dataclass_fields())
    assert len(records()) > 20 and 8 < sum(map(brings_arrays, records())) < len(records())


def test_a_line_says_what_its_kind_has_to_say() -> None:
    for message, lines in REGISTER.items():
        for line in lines:
            assert line.fields and line.check, message
            assert bool(line.buys) == (line.trust == WORD), (message, line.fields)


# An attack on every word ---------------------------------------------------------------------------------------------

OWN, COMMITTEE = "unit/protocol/test_senders_word.py", "unit/aggregation/test_committee_hostile.py"
LIARS = "unit/crypto/mpc/test_mpc_liars.py"
_MESSAGES = "unit/aggregation/test_secure_messages.py"
_LABEL = f"{OWN}::test_the_round_of_an_order_is_a_label"
_AUDIT = f"{OWN}::test_a_superlinks_number_of_a_run_and_hash_of_an_app_are_labels_of_the_audit_log"
_DISTANCE = f"{OWN}::test_against_whatever_model_a_row_moves_a_distance_by_one"
_TERMS = (
    f"{OWN}::test_whatever_model_weights_penalties_and_scale_say_a_row_moves_a_score_as_far_as_the_noise_is_for "
    "unit/stores/parties/test_parties_orders.py::test_model_and_penalties_of_the_runs_own_norm_tell_no_row"
)
_GROUPS = (
    "unit/selection/test_sketches.py::test_whatever_groups_a_server_names_a_row_moves_the_vector_by_the_sensitivity "
    "unit/selection/test_sketches.py::test_whatever_groups_a_server_names_an_interaction_moves_by_its_sensitivity"
)
_WEIGHED = "property/test_vector_sensitivity.py::test_weighed_marginals_move_as_far_as_their_layout_says"
_PIECES = "unit/protocol/test_opening.py::test_pieces_that_do_not_fit_the_schema_are_refused"
_JUDGE = "unit/evaluation/federated/test_federated_evaluation.py::test_a_row_moves_no_entry_farther_than_is_charged"
_FITTED = "unit/protocol/test_hostile_requests.py::test_measurements_that_a_client_fits_itself_are_bounded_like_a_model"
_CONTRIBUTORS = "unit/stores/parties/test_crypto_contributors.py"
_COMPUTED = f"{_CONTRIBUTORS}::test_a_choice_sees_the_total_of_all_or_nothing"

#: What shows that a lie buys what its line says and no more: message -> field -> tests.
ATTACKS: dict[str, dict[str, str]] = {
    "Incoming": {
        "run": f"{_AUDIT} unit/ledgers/test_node_book.py::test_a_run_that_ended_keeps_nothing",
        "fab_hash": _AUDIT,
        "together": "unit/flower/test_packing.py::test_arrays_come_apart_as_they_were",
    },
    "Task": {"run": _AUDIT, "fab_hash": _AUDIT},
    "Refusal": {
        "kind": "unit/wire/test_refusals.py::test_a_node_has_only_the_kinds_of_a_node "
        "unit/protocol/test_node_waits.py::test_people_have_a_day_and_nobody_sleeps_through_it"
    },
    "Envelope": {"round": f"{OWN}::test_a_round_that_stands_still_buys_requests_within_plan_and_budget_alone"},
    "SumSpec": {
        "asked": f"{_MESSAGES}::test_a_server_cannot_claim_a_larger_cohort_than_it_names "
        "unit/protocol/test_hostile_requests.py::test_shares_are_never_sized_for_more_clients_than_are_asked"
    },
    "Stage": {"run": f"{COMMITTEE}::test_keys_and_shares_of_another_run_of_the_same_name_are_of_no_use"},
    "enrol (secagg)": {"invited": f"{COMMITTEE}::test_every_fact_of_a_setup_enters_what_is_signed"},
    "deal (secagg)": {"enrolled": f"{COMMITTEE}::test_members_check_who_enrolled"},
    "masked (secagg)": {"cohort": f"{_MESSAGES}::test_clients_that_do_not_exist_do_not_open_a_sum"},
    "unmask (secagg)": {
        "contributors": f"{COMMITTEE}::test_two_stories_about_the_contributors_open_nothing "
        f"{COMMITTEE}::test_a_member_opens_no_sum_over_too_few_or_over_strangers"
    },
    "Announcement": {"nonce": f"{OWN}::test_a_nonce_of_the_server_alone_makes_no_two_runs_the_same"},
    "ChooseOrder": {"round": _LABEL},
    "OpenOrder": {"round": _LABEL},
    "brought to a party": {
        "vector": f"{_CONTRIBUTORS}::test_a_total_of_others_than_were_named_is_uniform",
        "brought": f"{_CONTRIBUTORS}::test_an_opening_of_anything_else_is_uniform "
        f"{_CONTRIBUTORS}::test_encrypted_counts_can_not_be_added_to_an_opening",
    },
    "ChoiceTerms": dict.fromkeys(("weights", "penalties", "model", "scale"), _TERMS)
    | {
        "rows": f"{OWN}::test_too_few_rows_wrap_an_l1_score_and_move_it_no_farther "
        f"{OWN}::test_too_few_rows_make_the_noise_of_a_squared_score_too_small_by_their_factor_and_no_more "
        f"{_CONTRIBUTORS}::test_terms_name_no_fewer_rows_than_the_clients_sealed"
    },
    "DecryptionQuery": dict.fromkeys(("ciphertexts", "offsets"), _COMPUTED),
    "DealFacts": {"rows": f"{OWN}::test_rows_that_a_client_makes_up_break_a_squared_score_and_no_l1_score"},
    "lines between parties": {
        "session": f"{LIARS}::test_a_lie_in_any_message_ends_the_computation_and_nothing_comes_out"
    },
    "common.Evaluate": dict.fromkeys(("total", "even", "arrays"), _JUDGE),
    "finding.Close": dict.fromkeys(("cells", "cuts", "atoms", "categories"), _PIECES),
    "flaim.Select": {
        "sigma": "unit/protocol/test_hostile_requests.py::test_no_penalty_makes_one_row_count_for_many",
        "measured": _FITTED,
        "sigmas": _FITTED,
        "arrays": _DISTANCE,
    },
    "distributed_aim.Scores": {"arrays": _DISTANCE},
    "mst.Tree": {"arrays": _DISTANCE},
    "sketch_aim.Sketches": {"arrays": _GROUPS},
    "sketch_aim.Arrangement": {"arrays": _GROUPS},
    "mst.PairSketches": {"arrays": _GROUPS},
    "sketch_aim.Residuals": {"arrays": _WEIGHED},
    "mst.CoarsePairs": {"arrays": _WEIGHED},
    "fed_dp_ctgan.Descent": {
        "arrays": "unit/strategies/test_fed_dp_ctgan.py::test_no_parameters_make_a_row_move_the_sum_farther"
    },
}


@pytest.mark.thorough
def test_there_is_an_attack_on_every_word_and_on_nothing_else() -> None:
    words = {name: {f for line in lines if line.trust == WORD for f in line.fields} for name, lines in REGISTER.items()}
    assert {name: set(fields) for name, fields in ATTACKS.items()} == {k: v for k, v in words.items() if v}
    for fields in ATTACKS.values():
        for tests in fields.values():
            for test in tests.split():
                path, _, name = test.partition("::")
                tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
                assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
