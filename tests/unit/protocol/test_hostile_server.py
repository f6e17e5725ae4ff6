"""What a hostile ServerApp gets out of a holder's node: refusals, in words that depend on no row, and nothing charged.

The server holds a valid operator's key and the SuperLink. In an otherwise honest run over malicious secure sums it
sends node 0 one tampered message after the other; at each point the honest message is answered, and the run ends well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsyn.aggregation.secure import write_cohort
from fedsyn.node.task import Task
from support.hostile_server import (
    GREEDY,
    HOLDERS,
    MARK,
    TWIN,
    Attack,
    Hospital,
    changed,
    configuration,
    envelope,
    resubmitted,
    without,
)

ATTACKS: dict[str, dict[str, Attack]] = {}
SAYS: dict[str, str] = {}


def attack(at: str, says: str) -> Callable[[Attack], Attack]:
    """An attack at a point of the run (request, or request/stage), and what the node says to it."""

    def entered(made: Attack) -> Attack:
        ATTACKS.setdefault(at, {})[made.__name__] = made
        SAYS[made.__name__] = says
        return made

    return entered


def of_config(hospital: Hospital, task: Task, run: str = "first", **nodes: Any) -> Task:
    """The message under another configuration, which the operator has signed."""
    config = configuration(**nodes)
    submitted = hospital.run_config(run, config)
    return changed(replace(task, run_config=submitted), config=config.sha256)


def raw(hospital: Hospital, task: Task, **nodes: Any) -> Task:
    """The message under a configuration that no parser of ours has seen."""
    document = json.loads(task.run_config["resolved"])
    for key, node in nodes.items():
        document[key] = {**document[key], **node} if isinstance(node, dict) else node
    return resubmitted(task, resolved=json.dumps(document))


# Another run than was agreed to --------------------------------------------------------------------------------------


@attack("sizes", "agreed to other configurations than the run's")
def another_configuration(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, mechanism={"rounds": 7})


@attack("sizes", "obeys signed orders only")
def unsigned(hospital: Hospital, task: Task) -> Task:
    return resubmitted(task, order="")


@attack("sizes", "signed for another run")
def order_of_another_run(hospital: Hospital, task: Task) -> Task:
    return resubmitted(task, run="second")


@attack("sizes", "does not know the operator")
def order_of_a_stranger(hospital: Hospital, task: Task) -> Task:
    return resubmitted(task, order=hospital.order("first", hospital.config, "stranger"))


@attack("sizes", "does not allow the run's mechanism")
def another_mechanism(hospital: Hospital, task: Task) -> Task:
    return raw(hospital, task, mechanism={"name": "fed_naive_bayes"})


@attack("sizes", "does not allow the run's mechanism")
def a_module_to_import(hospital: Hospital, task: Task) -> Task:
    return raw(hospital, task, mechanism={"name": "antigravity:fly"})


@attack("sizes", "does not allow the run's aggregation.protocol")
def in_clear(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, aggregation={"protocol": "plain", "threat": "semi_honest"})


@attack("sizes", "does not allow the run's aggregation.noise")
def noise_that_the_server_promises(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, aggregation={"noise": "server", "threat": "semi_honest"})


@attack("sizes", "aggregation.threat: malicious only")
def a_weaker_threat_model(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, aggregation={"threat": "semi_honest"})


@attack("sizes", "minimum_cohort is 2, and this node's holder demands at least 3")
def a_smaller_cohort(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, federation={"minimum_cohort": 2})


@attack("sizes", "aggregation.corrupted is 0, and this node's holder demands at least 0.25")
def shares_that_count_on_nobody(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, aggregation={"corrupted": 0.0})


@attack("one-way/masked", "aggregation.corrupted is 0.2, and this node's holder demands at least 0.25")
def fewer_that_collude_than_agreed(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, aggregation={"corrupted": 0.2})


@attack("sizes", "aggregation.dropout is 0.5, and this node's holder allows at most 0.25")
def more_that_are_missing_than_agreed(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, aggregation={"dropout": 0.5})


@attack("sizes", "does not publish its row count")
def an_exact_row_count(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, privacy={"client_sizes": "public"})


@attack("sizes", "refuses a seeded run")
def seeded_noise(hospital: Hospital, task: Task) -> Task:
    return raw(hospital, task, runtime={"seed": 1})


@attack("sizes", "must be 'deployment'")
def a_simulation(hospital: Hospital, task: Task) -> Task:
    return raw(hospital, task, runtime={"engine": "inprocess"})


@attack("sizes", "opens no file for it")
def a_path_to_open(hospital: Hospital, task: Task) -> Task:
    return replace(task, run_config={"config": "/etc/hostname", "run": "first"})


@attack("sizes", "no name that this node takes")
def a_run_named_like_a_path(hospital: Hospital, task: Task) -> Task:
    name = "../../node1/state/ledger"
    return replace(task, run_config=hospital_run(hospital, name))


def hospital_run(hospital: Hospital, name: str) -> dict[str, Any]:
    """Signed by hand: `signed_order` would not."""
    from fedsyn.keys.holder_keys import load_operator_key
    from fedsyn.wire.orders import Subject

    key = load_operator_key(hospital.folder / "operator.key")
    signature = key.sign(Subject(name, hospital.config.sha256, hospital.schema.sha256).signed).hex()
    order = json.dumps({"format": 1, "operator": key.public.hex(), "signature": signature})
    return {**hospital.run_config("first", hospital.config), "run": name, "order": order}


@attack("sizes", "another run of this name")
def another_configuration_under_the_same_name(hospital: Hospital, task: Task) -> Task:
    """The holder agreed to either: but a run keeps what it began with."""
    return of_config(hospital, task, **TWIN)


@attack("sizes", "the holder's limit for life is epsilon = 1.4")
def more_than_a_life_allows(hospital: Hospital, task: Task) -> Task:
    return of_config(hospital, task, run="greedy", **GREEDY)


@attack("sizes", "longer than this node reads")
def a_giant_configuration(hospital: Hospital, task: Task) -> Task:
    return resubmitted(task, resolved=" " * 2**21)


@attack("sizes", "not valid for this node's fedsyn")
def a_deep_configuration(hospital: Hospital, task: Task) -> Task:
    return resubmitted(task, resolved="[" * 500_000)


@attack("sizes", "more clients than this node assumes")
def a_giant_federation(hospital: Hospital, task: Task) -> Task:
    return raw(hospital, task, federation={"clients": 10**12})


@attack("sizes", "more cliques than this node makes")
def a_giant_workload(hospital: Hospital, task: Task) -> Task:
    return raw(hospital, task, workload={"cliques": [["age", "ward", "ill"]] * 40_000})


# Another request than the contract has -------------------------------------------------------------------------------


@attack("sizes", "envelope is missing or not a JSON object")
def a_deep_envelope(hospital: Hospital, task: Task) -> Task:
    return replace(task, scalars={"envelope": "[" * 500_000})


@attack("sizes", "protocol version")
def another_protocol(hospital: Hospital, task: Task) -> Task:
    return changed(task, version=2)


@attack("sizes", "runs another configuration")
def a_request_of_another_configuration(hospital: Hospital, task: Task) -> Task:
    return changed(task, config="0" * 64)


@attack("sizes", "does not answer 'dump'")
def an_unknown_request(hospital: Hospital, task: Task) -> Task:
    return changed(task, request="dump")


@attack("sizes", "does not answer 'select'")
def a_request_of_another_mechanism(hospital: Hospital, task: Task) -> Task:
    return changed(task, request="select", params={"eligible": [0], "sigma": 9.0, "epsilon": 0.1})


@attack("sizes", "answered in a sum only")
def exact_counts_by_asking(hospital: Hospital, task: Task) -> Task:
    return replace(task, scalars={"envelope": json.dumps({**envelope(task), "request": "one-way", "params": {}})})


@attack("sizes", "does not answer 'deal'")
def exact_counts_into_a_store(hospital: Hospital, task: Task) -> Task:
    facts = {**envelope(task), "request": "deal", "kind": "deal", "params": {"rho": 0.01}}
    return replace(task, scalars={"envelope": json.dumps(facts)})


@attack("sizes", "less noise than the run's plan has")
def less_noise_on_a_size(hospital: Hospital, task: Task) -> Task:
    return changed(task, params={"sigma": 0.9 * envelope(task)["params"]["sigma"]})


@attack("sizes", "parameter 'sigma'")
def no_noise_on_a_size(hospital: Hospital, task: Task) -> Task:
    return replace(task, scalars={"envelope": json.dumps({**envelope(task), "params": {"sigma": 0.0}})})


@attack("sizes", "has a parameter that it does not take")
def a_parameter_of_its_own_making(hospital: Hospital, task: Task) -> Task:
    return changed(task, params={"columns": ["ward"]})


# A sum that is not what it seems -------------------------------------------------------------------------------------


@attack("one-way/masked", "less noise than the run's plan has")
def less_noise_than_planned(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"sigma": 0.99 * envelope(task)["sum"]["sigma"]})


@attack("one-way/masked", "the description of the sum is malformed")
def more_arrays_than_accounted_for(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"count": 0})


@attack("one-way/masked", "smaller sensitivity")
def a_smaller_sensitivity(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"sensitivity": 0.5})


@attack("one-way/masked", "another domain or other cliques")
def another_layout(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"shapes": [[5], [4], [4]]})


@attack("one-way/masked", "opened with 1 clients, and this node's holder demands at least 3")
def a_sum_over_one_client(hospital: Hospital, task: Task) -> Task:
    return changed(without(task, "stage"), sum={"asked": 1})


@attack("one-way/masked", "opened with 2 clients, and this node's holder demands at least 3")
def a_sum_over_two_clients(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"asked": 2})


@attack("one-way/masked", "more or fewer clients")
def a_share_of_noise_sized_for_thousands(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"asked": 4000})


@attack("one-way/masked", "the description of the sum is missing")
def a_sum_without_a_description(hospital: Hospital, task: Task) -> Task:
    return without(task, "sum")


@attack("one-way/masked", "no stage of a secure sum")
def a_vector_in_clear(hospital: Hospital, task: Task) -> Task:
    return without(task, "stage")


@attack("one-way/masked", "answered in a sum only")
def a_masked_vector_by_asking(hospital: Hospital, task: Task) -> Task:
    return changed(task, kind="ask")


@attack("one-way/masked", "too few of those whom the secure sum asks are enrolled")
def a_cohort_of_its_own_choice(hospital: Hospital, task: Task) -> Task:
    """Two of the four, and a third whom nobody knows."""
    arrays = list(task.arrays)
    arrays[envelope(task)["stage"]["skip"]] = write_cohort([0, 1, 4000])
    return changed(replace(task, arrays=arrays), sum={"asked": 3})


def survivors(task: Task, who: list[int]) -> Task:
    """The order to unmask the sum of these clients: the first array of the stage's own says who they are."""
    first = envelope(task)["stage"]["skip"] + 5
    bits = np.packbits([k in who for k in range(HOLDERS)])
    assert bits.shape == task.arrays[first].shape and bits.dtype == task.arrays[first].dtype
    return replace(task, arrays=[*task.arrays[:first], bits, *task.arrays[first + 1 :]])


@attack("one-way/unmask", "2 clients contributed to the secure sum, fewer than the 3 that it needs")
def survivors_below_the_minimum(hospital: Hospital, task: Task) -> Task:
    return survivors(task, [0, 1])


@attack("one-way/unmask", "bits set beyond its end")
def survivors_that_nobody_knows(hospital: Hospital, task: Task) -> Task:
    first = envelope(task)["stage"]["skip"] + 5
    turned = np.invert(task.arrays[first])
    return replace(task, arrays=[*task.arrays[:first], turned, *task.arrays[first + 1 :]])


# Again, and out of turn ----------------------------------------------------------------------------------------------


def earlier(hospital: Hospital, request: str, stage: str | None = None) -> Task:
    """An honest message that node 0 has answered."""
    return next(
        task
        for task, _ in hospital.honest
        if envelope(task)["request"] == request and (envelope(task).get("stage") or {}).get("name") == stage
    )


@attack("sketch/masked", "answered before, and others since")
def an_old_message_replayed(hospital: Hospital, task: Task) -> Task:
    return earlier(hospital, "one-way", "masked")


@attack("measure/masked", "answered that sum, or a later one, already")
def another_set_of_survivors(hospital: Hospital, task: Task) -> Task:
    """The sum without the last client, after the sum with it: the difference would be that client's vector."""
    old = earlier(hospital, "sketch", "unmask")
    nonces = envelope(old)["stage"]["skip"] + 6
    fewer = [a[:-1] if i == nonces else a for i, a in enumerate(old.arrays)]
    return survivors(replace(old, arrays=fewer), list(range(HOLDERS - 1)))


@attack("measure/masked", "comes before one that this client was asked already")
def an_old_number(hospital: Hospital, task: Task) -> Task:
    old = earlier(hospital, "one-way", "masked")
    return changed(old, sum={"sigma": 2.0 * envelope(old)["sum"]["sigma"]})


@attack("sketch/masked", "'one-way' was asked as often as the run's plan has it")
def the_same_sum_again(hospital: Hospital, task: Task) -> Task:
    """With new numbers: averaged with the first one it would have less noise."""
    old, now = envelope(earlier(hospital, "one-way", "masked")), envelope(task)
    again = changed(task, request="one-way", params=old["params"], sum={**old["sum"], "number": now["sum"]["number"]})
    keep = now["stage"]["skip"]
    facts = {**envelope(again), "params": old["params"], "stage": {**now["stage"], "skip": 0}}
    return replace(again, arrays=task.arrays[keep:], scalars={"envelope": json.dumps(facts)})


@attack("sketch/masked", "'one-way' was asked as often as the run's plan has it")
def the_same_sum_with_another_cohort(hospital: Hospital, task: Task) -> Task:
    again = the_same_sum_again(hospital, task)
    return changed(
        replace(again, arrays=[write_cohort(range(HOLDERS - 1)), *again.arrays[1:]]), sum={"asked": HOLDERS - 1}
    )


@attack("sketch/masked", "parameter 'cliques'")
def an_endless_list(hospital: Hospital, task: Task) -> Task:
    return changed(task, params={"cliques": list(range(10**6))})


@attack("sketch/masked", "the groups of the sketches do not fit the domain")
def giant_arrays(hospital: Hospital, task: Task) -> Task:
    return replace(task, arrays=[np.zeros(5_000_000), *task.arrays[1:]])


@attack("measure/masked", "less noise than the run's plan has")
def more_than_the_plan_has_left(hospital: Hospital, task: Task) -> Task:
    """A vector of the same layout, at a noise that costs more than all rounds together may."""
    return changed(task, sum={"sigma": 1e-3 * envelope(task)["sum"]["sigma"]})


# The vectors of sketch_aim: the client's own reckoning binds ---------------------------------------------------------


@attack("sketch/masked", "the groups of the sketches do not exist")
def a_group_in_the_next_sketch(hospital: Hospital, task: Task) -> Task:
    """A row in a bucket beyond its sketch's would count in another one, with that one's weight."""
    groups, *others = task.arrays
    return replace(task, arrays=[np.full_like(groups, 10**4), *others])


@attack("measure/masked", "parameter 'weights'")
def a_weight_beyond_the_finest(hospital: Hospital, task: Task) -> Task:
    return changed(task, params={"weights": [2**31 + 1 for _ in envelope(task)["params"]["weights"]]})


@attack("measure/masked", "smaller sensitivity")
def heavier_than_accounted_for(hospital: Hospital, task: Task) -> Task:
    """Sixteen times the residuals under the same noise: the sum's description still speaks of the lighter vector."""
    weights = [16 * weight for weight in envelope(task)["params"]["weights"]]
    lighter = {"sensitivity": 0.5, "sigma": 1e3 * envelope(task)["sum"]["sigma"]}  # within the plan, as it is told
    return changed(task, params={"weights": weights}, sum=lighter)


@attack("measure/masked", "parameter 'cliques'")
def a_marginal_twice(hospital: Hospital, task: Task) -> Task:
    params = envelope(task)["params"]
    cliques, weights = params["cliques"], params["weights"]
    return changed(task, params={"cliques": cliques[:1] * 2, "weights": weights[:1] * 2, "shapes": []})


@attack("measure/masked", "does not bring the groups of its marginals, or more than them")
def groups_that_do_not_come_along(hospital: Hospital, task: Task) -> Task:
    params = envelope(task)["params"]
    other = [] if params["shapes"] else [[1, 1] for _ in params["cliques"]]
    return changed(task, params={"shapes": other})


@attack("measure/masked", "'sketch' was asked as often as the run's plan has it")
def the_sketches_again(hospital: Hospital, task: Task) -> Task:
    old, now = envelope(earlier(hospital, "sketch", "masked")), envelope(task)
    was = earlier(hospital, "sketch", "masked")
    again = changed(task, request="sketch", sum={**old["sum"], "number": now["sum"]["number"]})
    facts = {**envelope(again), "params": old["params"], "stage": {**now["stage"], "skip": old["stage"]["skip"]}}
    arrays = [*was.arrays[: old["stage"]["skip"]], *task.arrays[now["stage"]["skip"] :]]
    return replace(again, arrays=arrays, scalars={"envelope": json.dumps(facts)})


@attack("measure/masked", "'measure-all' asks for less noise than the run's plan has")
def all_marginals_of_the_other_schedule(hospital: Hospital, task: Task) -> Task:
    """What cohorts are asked is no request of a run that asks everybody: its plan has nothing for it."""
    params = {"one_way": [1, 1, 1], "cliques": [], "weights": []}
    made = changed(task, request="measure-all")
    return replace(made, scalars={"envelope": json.dumps({**envelope(made), "params": params})})


# How good the table is: the table, boxes and trees are the server's ---------------------------------------------------


def question(task: Task, place: int, made: Callable[[np.ndarray], np.ndarray]) -> Task:
    """The message with another array of the question: the table, three of the boxes, four of the trees."""
    return replace(task, arrays=[made(a.copy()) if i == place else a for i, a in enumerate(task.arrays)])


@attack("evaluate/masked", "'evaluate' asks for less noise than the run's plan has")
def less_noise_on_how_good_it_is(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"sigma": 0.99 * envelope(task)["sum"]["sigma"]})


@attack("evaluate/masked", "smaller sensitivity")
def an_evaluation_of_unit_sensitivity(hospital: Hospital, task: Task) -> Task:
    return changed(task, sum={"sensitivity": 1.0, "sigma": envelope(task)["sum"]["sigma"]})


@attack("evaluate/masked", "expected 8 arrays in the question")
def a_question_without_trees(hospital: Hospital, task: Task) -> Task:
    facts = envelope(task)
    cut = changed(task, stage={"skip": facts["stage"]["skip"] - 4})
    return replace(cut, arrays=[*task.arrays[:4], *task.arrays[8:]])


@attack("evaluate/masked", "a code that there is not")
def a_table_beyond_the_domain(hospital: Hospital, task: Task) -> Task:
    return question(task, 0, lambda table: np.full_like(table, 200))


@attack("evaluate/masked", "a box leaves the domain")
def a_box_beyond_the_domain(hospital: Hospital, task: Task) -> Task:
    return question(task, 3, lambda high: np.full_like(high, 2**30))


@attack("evaluate/masked", "a box has columns that there are not, or one of them twice")
def a_box_over_one_column_twice(hospital: Hospital, task: Task) -> Task:
    return question(task, 1, np.zeros_like)


@attack("evaluate/masked", "the boxes' arrays have other lengths, or there are too many")
def more_boxes_than_a_message_may_bring(hospital: Hospital, task: Task) -> Task:
    more = [np.tile(a, (5000 // len(a) + 1, 1)) for a in task.arrays[1:4]]
    return replace(task, arrays=[task.arrays[0], *more, *task.arrays[4:]])


@attack("evaluate/masked", "a tree of the classifier leads back")
def a_tree_without_an_end(hospital: Hospital, task: Task) -> Task:
    """A node that leads to itself: whoever has a row there never answers."""

    def turned(nodes: np.ndarray) -> np.ndarray:
        nodes[:, 0, 2:] = 0, 0
        nodes[:, 0, 3] = -1
        return nodes

    return question(task, 4, turned)


@attack("evaluate/masked", "a tree of the classifier looks at a column that it may not see")
def a_tree_that_sees_the_label(hospital: Hospital, task: Task) -> Task:
    def sees(nodes: np.ndarray) -> np.ndarray:
        nodes[:, 0] = 2, 0, 1, 2
        return nodes

    return question(task, 4, sees)


@attack("evaluate/masked", "the classifier's values must be finite")
def a_leaf_that_swallows_every_score(hospital: Hospital, task: Task) -> Task:
    return question(task, 5, lambda values: np.full_like(values, np.nan))


@attack("evaluate/masked", "the classifier's values must be finite, and 1e+100 at most")
def leaves_whose_sum_overflows(hospital: Hospital, task: Task) -> Task:
    return question(task, 5, lambda values: np.full_like(values, 1e300))


@attack("evaluate/masked", "the classifier's classes must be ascending codes of the label")
def classes_of_no_label(hospital: Hospital, task: Task) -> Task:
    return question(task, 7, lambda classes: classes + 7)


@attack("evaluate/masked", "the label must be one of the table's columns")
def a_label_beyond_the_columns(hospital: Hospital, task: Task) -> Task:
    return changed(task, params={"label": 77})


@attack("evaluate/masked", "parameter 'total'")
def a_table_of_no_rows(hospital: Hospital, task: Task) -> Task:
    return replace(
        task, scalars={"envelope": json.dumps({**envelope(task), "params": {"total": 0.0, "even": 1.0, "label": 3}})}
    )


@attack("evaluate/masked", "parameter 'even'")
def rows_without_a_number(hospital: Hospital, task: Task) -> Task:
    return changed(task, params={"even": "all"})


@attack("evaluate/masked", "answered in a sum only")
def how_good_it_is_by_asking(hospital: Hospital, task: Task) -> Task:
    return changed(task, kind="ask")


@attack("sketch/masked", "'evaluate' asks for less noise than the run's plan has")
def an_evaluation_with_the_noise_of_a_sketch(hospital: Hospital, task: Task) -> Task:
    """Before there is a table: of its own making, at what the sketches may cost."""
    question = [np.zeros((1, 3), np.uint8), *(np.zeros((0, 2), np.int32) for _ in range(3))]
    question += [np.zeros((0, 1, 4), np.int32), np.zeros((0, 1)), np.zeros(0), np.zeros(0, np.int32)]
    made = changed(task, request="evaluate", stage={"skip": 8}, sum={"shapes": [[6]], "sensitivity": 1e3, "sigma": 3e2})
    facts = {**envelope(made), "params": {"total": 200.0, "even": 50.0, "label": 0}}
    keep = envelope(task)["stage"]["skip"]
    return replace(made, arrays=[*question, *task.arrays[keep:]], scalars={"envelope": json.dumps(facts)})


# The campaign --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> list[Hospital]:
    """The same attacks on holders of two tables that have nothing in common."""
    made = [Hospital(tmp_path_factory.mktemp("hostile") / str(seed), seed, ATTACKS) for seed in (1, 2)]
    for hospital in made:
        hospital.strategy = hospital.drive()
    return made


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_attack_is_refused_and_costs_nothing(campaigns: list[Hospital], name: str) -> None:
    left, right = (hospital.outcomes[name] for hospital in campaigns)
    assert left.answer["ok"] is False and SAYS[name] in left.answer["sentence"]
    assert left.reply.arrays == [] and left.charged == 0.0 == right.charged
    assert left.reply.scalars == right.reply.scalars  # whatever the rows are
    assert MARK not in json.dumps(left.reply.scalars)


def test_the_honest_run_was_answered_and_paid_for_to_the_last_digit(campaigns: list[Hospital]) -> None:
    for hospital in campaigns:
        strategy = hospital.strategy
        assert strategy.model is not None and [record.dropped for record in strategy.records] == [{}] * 4
        spent = {hospital.spent(node) for node in range(HOLDERS)}
        assert len(spent) == 1  # node 0 paid what the others did, who were not attacked
        assert len(hospital.outcomes) == len(SAYS) >= 25


def test_a_second_name_gets_no_second_budget(campaigns: list[Hospital]) -> None:
    """The run is over; epsilon 1 of 1.4 is spent, and the next run asks for 1."""
    (hospital, _) = campaigns
    task = replace(hospital.honest[0][0], run_config=hospital.run_config("another", hospital.config))
    outcome = hospital.asked(task)
    told = outcome.answer
    assert told["ok"] is False and outcome.charged == 0.0
    assert "limit for life is epsilon = 1.4" in told["sentence"]
    assert "spent: epsilon = 1 " in told["sentence"] and "asks for epsilon = 1 " in told["sentence"]


def test_the_last_message_again_gets_the_same_bytes_and_is_free(campaigns: list[Hospital]) -> None:
    (hospital, _) = campaigns
    first, again = (hospital.asked(hospital.honest[-1][0]) for _ in range(2))
    assert first.answer["ok"] is True and first.charged == again.charged == 0.0
    assert first.reply.scalars == again.reply.scalars
    for one, two in zip(first.reply.arrays, again.reply.arrays, strict=True):
        np.testing.assert_array_equal(one, two)


def test_private_sizes_asked_for_twice_are_the_same_number(campaigns: list[Hospital]) -> None:
    """Of two honest requests with fresh noise the mean would say more than either."""
    (_, hospital) = campaigns
    task, reply = hospital.honest[1]
    again = hospital.asked(changed(task, sequence=10**6))
    first = json.loads(reply.scalars["answer"])["params"]
    assert again.answer["params"] == first and first["rows"] != round(first["rows"]) and again.charged == 0.0


def test_every_attack_stands_in_the_audit_log_without_a_value(campaigns: list[Hospital]) -> None:
    for hospital in campaigns:
        text = (hospital.nodes[0].file.state_folder / "audit.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        left_out = json.loads((hospital.nodes[0].file.state_folder / "audit.jsonl.rate").read_text())["left_out"]
        left_out += sum(line.get("left_out", 0) for line in lines)
        refused = sum(line["event"] == "refused" for line in lines)
        assert refused + left_out >= len(SAYS) and refused > 40
        assert sum(line.get("rho") or 0.0 for line in lines) == pytest.approx(hospital.spent(), rel=1e-12)
        assert MARK not in text
