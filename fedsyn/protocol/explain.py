"""Explanation of a run to a data holder.

Everything that a run may ever ask and cost is read off the contract before anybody joins.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsyn.aggregation.base import Limits
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.output import counted, plain
from fedsyn.privacy import PrivacyStatement, sigma_for_rho
from fedsyn.privacy.against import against, in_words, left, times_of
from fedsyn.privacy.release import Shares
from fedsyn.privacy.unit import NOT_ONE_PERSON, counted_as
from fedsyn.protocol.client import Join, RowTotal, Sizes, TableClient
from fedsyn.protocol.common import Evaluate, beside
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.finding import Close, steps_of
from fedsyn.protocol.plan import Step
from fedsyn.table.schema import Schema
from fedsyn.table.schema.approval import person_columns
from fedsyn.table.schema.persons import persons_in_words
from fedsyn.wire.requests import Request

#: Kind of a request -> what it means for a data holder.
KINDS = {
    "ask": "each client by itself",
    "sum": "a sum over a cohort, with noise",
    "deal": "each client, into a store",
    "choose": "of the store, not of a client",
    "open": "of the store, not of a client",
}


@dataclass(frozen=True)
class RequestFacts:
    """One request that a server may send.

    Attributes:
        name: on the wire, and in the ledgers.
        kind: how it is yielded, and so who gets what (`KINDS`).
        what: of the request, in one sentence.
        leaves: what leaves a client.
        costs: what answering costs one row.
        parameters: name -> what is allowed.
        plan: how often it may be asked, for which share of the budget, and how far one row moves what is summed; by
            steps of the plan.
    """

    name: str
    kind: str
    what: str
    leaves: str
    costs: str
    parameters: dict[str, str]
    plan: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: type[Request], steps: Iterable[tuple[Contract, Step]] = ()) -> RequestFacts:
        schema = request.model_json_schema()
        definitions = schema.get("$defs", {})
        parameters = {name: _allowed(field, definitions) for name, field in schema.get("properties", {}).items()}
        what = (request.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        plan = tuple(_planned(step, contract) for contract, step in steps if step.request is request)
        return cls(request.name, request.kind, " ".join(what.split()), request.leaves, request.costs, parameters, plan)


@dataclass(frozen=True)
class Explanation:
    """A configuration's meaning for a data holder.

    Attributes:
        mechanism: its name.
        sha256: the configuration's hash, which a holder can pin.
        statement: title -> text of the privacy statement under this configuration.
        neighbours: which federations the guarantee cannot tell apart.
        limits: how many holders must take part in what comes out, and how many may pool what they know, with the
            values of the configuration that say so.
        against: the most that somebody outside, other holders, and the server with them could face, if the whole budget
            is spent; as `fedsyn.privacy.against` gives it.
        budget: epsilon and delta, and the same in the accountant's unit.
        parties: name, address and fingerprint of each computing party; none where there are none.
        requests: everything that a server may ask; a client refuses anything else.
        candidates: number of cliques that may be measured.
        smallest_sigma: least noise that a single marginal can have under the whole budget, in records.
        counted: whom the costs are of: one of them, and several.
    """

    mechanism: str
    sha256: str
    statement: dict[str, str]
    neighbours: str
    limits: str
    against: dict[str, Any]
    budget: dict[str, float | str]
    parties: tuple[str, ...]
    requests: tuple[RequestFacts, ...]
    candidates: int
    smallest_sigma: float
    counted: tuple[str, str] = ("row", "rows")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def render(self, width: int = 80) -> str:
        """Returns plain text, at most `width` columns wide."""
        lines: list[str] = []

        def add(text: str, indent: int = 0, hang: int = 2) -> None:
            first, rest = " " * indent, " " * (indent + hang)
            lines.extend(textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest))

        add(f"{self.mechanism}: what a server may ask of a data holder, and what it costs one {self.counted[0]}")
        lines.append("")
        for title, text in self.statement.items():
            add(f"{title}: {text}")
        add(f"Neighbours: {self.neighbours}")
        add(f"Who takes part: {self.limits}")
        sentences = in_words(self.against, float(self.budget["epsilon"]), self.counted[1])
        if sentences:
            add(
                f"Against whom, at delta = {self.budget['delta']:g}, if all of the budget is spent: "
                + " ".join(sentences)
            )
        for party in self.parties:
            add(f"Party: {party}")
        lines.append("")
        for request in self.requests:
            add(f"{request.name} ({KINDS[request.kind]}): {request.what}")
            add(f"leaves: {request.leaves}", 4)
            add(f"costs:  {request.costs}", 4)
            for step in request.plan:
                add(f"plan:   {step}", 4)
            for name, allowed in request.parameters.items():
                add(f"{name}: {allowed}", 6)
        lines.append("")
        add(
            f"Whatever is asked, a client's ledger refuses what would exceed epsilon = {self.budget['epsilon']:g} at "
            f"delta = {self.budget['delta']:g}: {self.budget['capacity']:.6g} in {self.budget['unit']} "
            f"({self.budget['accountant']}). All of it spent on one marginal of the {self.candidates} that may be "
            f"measured would leave a noise of {self.smallest_sigma:.4g} records on every count."
        )
        add("Anything else is refused: other requests, other parameters, another configuration.")
        add(f"config-sha256: {self.sha256}")
        return plain("\n".join(lines)) + "\n"


def explain(config: RunConfig, domain: Domain, client: type[TableClient], schema: Schema | None = None) -> Explanation:
    """Reads off a contract what a run may ask and cost.

    Args:
        config: the run's configuration.
        domain: the schema's domain.
        client: the mechanism's client half.
        schema: the schema; needed where something of it is private, which is found first.

    Raises:
        ConfigError: the configuration cannot find what is private.
    """
    contract = client.Contract(config, domain)
    if schema is not None and schema.open:
        contract.opened(schema)
    budget = contract.budget
    guarantee, accountant = budget.guarantee, budget.accountant
    sampler = "seeded: a simulation, not private" if config.runtime.seed is not None else "the operating system's"
    statement = contract.filled(sampler).titled()
    if schema is not None and config.privacy.unit == "row" and (persons := person_columns(schema)):
        statement["Unit"] += f"; {NOT_ONE_PERSON} ({', '.join(persons)})"
    if schema is not None and config.privacy.unit == "person" and schema.rows.persons is not None:
        statement["Unit"] += f"; {persons_in_words(schema.rows.persons)}"
    # Requests that come before the mechanism's own: joining, row counts, what an open schema leaves to be found.
    first: list[type[Request]] = [Join]
    if config.privacy.client_sizes == "private":
        first.append(RowTotal if contract.sums_rows else Sizes)
    finding = () if contract.finding is None else steps_of(contract)
    first += [*(step.request for step in finding), *([Close] * bool(finding))]
    requests = own_requests(client) + [Evaluate] * config.evaluation.federated
    # Steps of the plan, each with the contract whose domain bounds it.
    largest = contract.at_largest()
    steps = [*((contract, step) for step in (*beside(contract).values(), *finding))]
    steps += [(largest, step) for step in largest.steps]
    node = config.aggregation
    whole = accountant.capacity
    # Who must take part or may collude, and the epsilon against them.
    limits, faced = _against(contract, requests, lambda part: accountant.epsilon(part * whole, guarantee.delta))
    cards = [*(node.parties or ()), *([node.crypto] if node.crypto is not None else [])]
    return Explanation(
        config.mechanism.name,
        config.sha256,
        statement,
        contract.unit.adjacency(config.privacy.client_sizes),
        limits,
        faced,
        {
            **guarantee.to_dict(),
            "accountant": accountant.name,
            "unit": accountant.unit,
            "capacity": accountant.capacity,
        },
        tuple(f"{p.name} at {p.address}, fingerprint {p.fingerprint}" for p in cards),
        tuple(RequestFacts.of(request, steps) for request in [*first, *requests]),
        len(contract.candidates),
        sigma_for_rho(budget.rho),
        counted_as(config.privacy.unit),
    )


def own_requests(client: type[TableClient]) -> list[type[Request]]:
    """Returns a mechanism's own requests.

    Those that its clients answer come first, then those of the store alone.
    """
    shared = (Join, Sizes, RowTotal, Evaluate)
    requests = [request for request in client.requests.values() if request not in shared]
    return [*requests, *(request for request in client.Contract.store if request not in requests)]


def _planned(step: Step, contract: Contract) -> str:
    """Returns how often a step is taken, its share and sensitivity.

    The share is of the budget; the sensitivity is that of the step's largest request.
    """
    layouts = step.request.largest(contract) if step.request.kind in ("sum", "open") else ()
    moved = max((one.sensitivity * math.sqrt(one.count) for one in layouts), default=0.0)
    sentence = step.sentence(contract.budget.table)
    return f"{sentence}; L2 sensitivity at most {moved:.4g}" if moved else sentence


def _against(
    contract: Contract, requests: Sequence[type[Request]], epsilon: Callable[[float], float]
) -> tuple[str, dict[str, Any]]:
    """Returns `Explanation.limits` and `Explanation.against`.

    The noise of sums is in shares, and what else is charged carries a whole noise of its own: row counts, at most
    `size_share` of the budget, and what clients, or a store, choose, of which there may be any part. With a factor f
    for sums whose shares are known in part, costs are at most f times the budget where f is above 1, and f times what
    sums are sure to have, with the rest as it is, where f is below.

    Args:
        contract: of the run.
        requests: those of the mechanism.
        epsilon: of a part of the budget.
    """
    config, holders = contract.config, 1 if contract.central else contract.config.federation.clients
    sizes = range(max(1, config.federation.minimum_cohort), holders + 1)
    if holders == 1 or contract.store or config.federation.sampling_rate == 1.0:
        sizes = range(holders, holders + 1)
    node = config.aggregation
    in_shares = node.noise == "distributed" and (not contract.store or node.capabilities.deals_noise)
    limits = [Limits.of(node, n, config.federation.minimum_cohort) for n in sizes]
    shares = [*dict.fromkeys(Shares(n.asked, n.fewest, n.fewest - n.corrupted) for n in limits if in_shares)]
    others = any(r.kind in ("ask", "choose") and not r.costs.startswith("nothing") for r in requests)
    rest = 1.0 if others else config.privacy.size_share if config.privacy.client_sizes == "private" else 0.0

    def faced(known: int, alone: bool) -> float:
        factor = max((times_of(one, left(one, known, alone)) for one in shares), default=1.0)
        return epsilon(factor if factor >= 1.0 else rest + (1.0 - rest) * factor)

    return _limits(contract, limits, in_shares), against(faced, shares, holders, contract.trusted(config).reads)


def _limits(contract: Contract, limits: Sequence[Limits], in_shares: bool) -> str:
    """Returns how many holders must take part, or may collude.

    The text names the keys that say so.
    """
    config, most = contract.config, limits[-1]
    node, minimum = config.aggregation, config.federation.minimum_cohort
    if most.asked == 1:
        return "one holder"
    text, keys = f"{config.federation.clients:,} holders", f"federation.minimum_cohort {minimum}"
    masked = node.capabilities.masks
    if not (in_shares or masked):
        return f"{text}; nothing comes out with fewer than {minimum:,} of them ({keys})"
    keys, corrupted = f"aggregation.dropout {node.dropout:g}, {keys}", f"aggregation.corrupted {node.corrupted:g}"
    for one in dict.fromkeys((most, limits[0])):
        what = "the store" if contract.store else f"a sum over {one.asked:,} of them"
        text += f"; {what} is opened with {one.fewest:,} contributors or more ({keys})"
        sized = []
        if in_shares and one.fewest - one.corrupted == 1:
            sized.append("each of them adds the whole noise")
        elif in_shares:
            sized.append(f"its noise assumes {counted(one.corrupted, 'known share')}")
        if masked:
            sized.append(f"its masks assume {counted(one.colluding, 'holder')} on the server's side")
        text += f"; {', '.join(sized)} ({corrupted})"
    unpinned = node.capabilities.pins_clients and node.roster is None and config.runtime.engine == "deployment"
    if unpinned and not contract.store:
        text += "; the crypto party adds the whole noise once more, as no client's key is pinned (aggregation.roster)"
    return text


def statements_page(clients: Mapping[str, type[TableClient]]) -> str:
    """Returns docs/statements.md: each family's privacy statement in general.

    Mechanisms that share one stand together.
    """
    together: dict[tuple[str, PrivacyStatement], list[str]] = {}
    for name, client in clients.items():
        statement = client.Contract.in_general(own_requests(client))
        together.setdefault((client.Contract.not_private, statement), []).append(name)
    lines = [
        "# Privacy statements",
        "",
        "Printed by `fedsyn mechanisms --statements`. Each is data on the contract of its family (`clients/`), filled",
        "in for a run by `fedsyn explain CONFIG` and in its `ledger.json`. Where something of a schema is private, a",
        "run says more: what is found, by which sums, for which share of it ([private_bins.md](private_bins.md)).",
    ]
    for (not_private, statement), names in together.items():
        lines += ["", "## " + ", ".join(f"`{name}`" for name in names), ""]
        if not_private:
            lines += [f"**Not private:** {not_private}.", ""]
        lines += [f"- **{title}**: {text}" for title, text in statement.titled().items()]
    return "\n".join(lines) + "\n"


def _allowed(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Returns a parameter's JSON schema in words."""
    if "$ref" in field:
        inner = definitions[field["$ref"].rsplit("/", 1)[1]]
        parts = [f"{name}: {_allowed(part, definitions)}" for name, part in inner.get("properties", {}).items()]
        return f"{{{'; '.join(parts)}}}"
    if field.get("type") == "array":
        what = field.get("description") or f"list of {_allowed(field['items'], definitions)}"
        return f"{what}, at least {field['minItems']}" if field.get("minItems") else what
    words = [{"string": "text", "boolean": "true or false"}.get(field.get("type", ""), field.get("type", "anything"))]
    for key, sign in (("exclusiveMinimum", ">"), ("minimum", ">="), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if key in field:
            words.append(f"{sign} {field[key]:g}")
    if field.get("description"):
        words.append(f"({field['description']})")
    return " ".join(words)
