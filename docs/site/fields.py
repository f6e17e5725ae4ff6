"""Every field of every message that a node, a client or a party gets, and why its receiver need not trust it.

One line a field, or a few of one kind: the receiver *derives* it from the configuration that it pinned and compares, it
*bounds* it (whatever passes, costs what the receiver's own ledger says), or the field is *the sender's word*: then the
line says what a lie buys. A field that the receiver does not read is listed as that. `docs/reference/fields.md` prints
the register; `tests/unit/wire/test_fields.py` finds the fields in the code, fails on one that is missing here
or gone there, and names an attack as a test on each word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Trust = Literal["derived", "bounded", "sender's word", "not read"]
DERIVED, BOUNDED, WORD, UNREAD = "derived", "bounded", "sender's word", "not read"


@dataclass(frozen=True)
class Line:
    """Some fields of one message.

    Attributes:
        fields: their names.
        trust: what its receiver does with them.
        check: by what.
        buys: what a lie buys, of a sender's word.
    """

    fields: tuple[str, ...]
    trust: Trust
    check: str
    buys: str = ""


def derived(fields: str, check: str) -> Line:
    return Line(tuple(fields.split()), "derived", check)


def bounded(fields: str, check: str) -> Line:
    return Line(tuple(fields.split()), "bounded", check)


def word(fields: str, check: str, buys: str) -> Line:
    return Line(tuple(fields.split()), "sender's word", check, buys)


def unread(fields: str, check: str) -> Line:
    return Line(tuple(fields.split()), "not read", check)


_PRICED = "candidates of the client's own contract, each once; any of them costs what the client's own layout says"
_LAYOUT = "the client's own layout: sensitivity, length and price follow from it, for every value"
_PLAN = "no less noise than the plan of the run's configuration has for this request, nor than the ledger has left"
_MODEL = "a model on the client's own domain, finite, within inference.max_cells and max_message_passing_cost"
_QUESTION = "another question of the same sensitivity, at the same price"

#: What a node's connection and worker get.
_NODE: Mapping[str, tuple[Line, ...]] = {
    "Incoming": (
        word(
            "run",
            "an integer of the SuperLink's; the ledger knows the run by its signed name",
            "another number in the audit log; a run that is called over keeps nothing from others any more",
        ),
        bounded("run_config", "see run configuration; bytes"),
        word("fab_hash", "text", "another hash in the audit log; no app is run"),
        bounded("scalars", "one envelope; bytes, objects"),
        bounded("arrays", "numeric, without pickle; number, bytes"),
        word("together", "true or false", "whether a reply's arrays travel as one object"),
    ),
    "Task": (
        word("run", "an integer", "another number in the audit log"),
        bounded("run_config", "see run configuration"),
        word("fab_hash", "as Incoming's", "another hash in the audit log; no app is run"),
        bounded("scalars", "one envelope"),
        bounded("arrays", "numeric, without pickle, read-only"),
    ),
    "run configuration": (
        bounded("resolved", "the policy, with the hashes that it pins; each request names the hash again"),
        derived("run order", "the operator's signature over name, configuration and this node's own schema; a person"),
        unread("store schema out reply resume", "the server half's own; a node has its own schema and table"),
    ),
}

#: What a server gets from a node that refuses.
_REFUSED: Mapping[str, tuple[Line, ...]] = {
    "Refusal": (
        word(
            "kind",
            "one of those that a node may have; anything else is a reply that cannot be used",
            "with `approval` or `busy` the run waits for this node, for federation.patience at most",
        ),
        bounded("sentence", "printable, up to 1,000 characters, else replaced as a whole; nothing follows from it"),
    ),
}

#: What every request carries, and what a sum adds to it.
_ENVELOPE: Mapping[str, tuple[Line, ...]] = {
    "Envelope": (
        derived("version", "compared"),
        bounded("request", "one of the mechanism's; of the policy's `requests`"),
        derived("kind", "that of the request's record"),
        derived("config", "the hash of the configuration that this client was started with, or its holder pinned"),
        bounded("params", "the request's record: strict types, no other key; below"),
        bounded("sequence", "at a node none before one that it was asked; the same message gets its stored reply"),
        word(
            "round",
            "an integer",
            "the label of an entry in the ledgers; with federation.max_participations more requests in one round, each "
            "within the plan, all within the budget",
        ),
        bounded("sum stage", "below; only where the request's kind, and the protocol, have one"),
    ),
    "SumSpec": (
        derived("shapes signed", "equal to the client's own layout of the request"),
        bounded("sensitivity magnitude count", "no less than in the client's own layout, which is charged"),
        bounded("sigma", _PLAN),
        word(
            "asked",
            "minimum_cohort at least, and the policy's; in a secure sum the number of clients that the message names; "
            "over fhe the run's clients at most",
            "smaller shares of the noise, where protocol plain trusts the server with single vectors anyway",
        ),
        bounded("number", "a secure sum's is answered once, and none before it; elsewhere nothing follows from it"),
    ),
    "Stage": (
        bounded("name", "a stage of the protocol, in order, each once"),
        bounded("skip", "arrays that the message has"),
        word("run", "64 characters", "another sum, or setup, in which this client takes part anew: it stays closed"),
    ),
}

_COHORT = "more honest clients dropped than are: `aggregation.dropout` and `corrupted` are sized for it"
_NAMED = "as many as the sum asks; the client is one of them; malicious: each stands in the roster that it pinned"

#: Arrays of a secure sum's messages, in order. The place says which client, setup and epoch the message is for.
_SECURE: Mapping[str, tuple[Line, ...]] = {
    "enrol (secagg)": (
        word("invited", "the client is one of them; malicious: each stands in its roster", _COHORT),
        bounded("place", "the client's own number; a setup after the last one"),
    ),
    "deal (secagg)": (
        derived("invited", "digest of the setup in which the client enrolled"),
        word("enrolled", "no fewer than the setup allows for; the client's own key among them", _COHORT),
        bounded("keys signatures", "usable, distinct; malicious: signed by keys of the roster"),
        bounded("place", "as in enrol"),
    ),
    "masked (secagg)": (
        word("cohort", _NAMED, _COHORT),
        derived("invited enrolled transcript", "bound into every key: a mask under another story comes off nowhere"),
        bounded("dealt", "no fewer members than the committee may lose; malicious: all of them"),
        bounded("keys signatures", "usable, distinct; malicious: signed by keys of the roster for this transcript"),
        bounded("place", "the client's own number; an epoch of the setup"),
    ),
    "unmask (secagg)": (
        derived("cohort invited enrolled transcript", "digest of the sum that the member masked for, or of its deal"),
        derived("dealt", "bound into the sum's digest"),
        word("contributors", "of the cohort, enrolled, no fewer than the sum's fewest; once a sum", _COHORT),
        bounded("nonces", "one a contributor; with another one the masks do not come off"),
        bounded("gone keys shares", "members, never more of them revealed in an epoch than the committee may lose"),
        bounded("place", "as in masked; no epoch before one that was used"),
    ),
    "recover (secagg)": (
        derived("cohort invited enrolled transcript dealt", "digest of the sum that this member answered"),
        bounded("gone keys shares", "as in unmask, together with those revealed before"),
        bounded("place", "as in masked"),
    ),
}

#: What a client gets with a request to deal, or to encrypt.
_INVITED: Mapping[str, tuple[Line, ...]] = {
    "deal (mpc)": (
        bounded("run", "a deal is sealed for it: parties that agreed on another one open nothing"),
        derived("keys", "those of the cards in the configuration, in a deployment"),
        bounded("partition", "the client's own number; sealed into the deal"),
    ),
    "deal (fhe)": (
        derived("run key seal signature", "signed for run, configuration and schema by the crypto party of the card"),
        bounded("partition", "the client's own number; whose columns it holds"),
    ),
    "sum (fhe)": (derived("run key seal signature", "as in a deal"),),
}

#: What a party gets: from a server, from clients through it, from the other parties.
_PARTIES: Mapping[str, tuple[Line, ...]] = {
    "call": (
        bounded("request", "bytes; read strictly"),
        derived("tag", "the nonce of the run that is under way; the caller is known by its pinned certificate"),
        derived("version", "compared, in every message"),
    ),
    "Announcement": (
        bounded("config", "the policy, with the hashes that it pins; the cards that this party pinned"),
        derived("attributes shape", "deals are sealed, and the crypto party's key is signed, for the clients' own"),
        derived("cliques", "what the mechanism stores under the configuration"),
        bounded("rho", "the policy, the run's own budget, the book; no deal of a client that promised less"),
        bounded("minimum", "no less than the configuration's minimum_cohort, nor than the policy's"),
        word("nonce", "16 bytes", "nothing: each party binds the run to a nonce of its own"),
        bounded(
            "clients", "no fewer than the policy's minimum; contributors are counted again before anything is opened"
        ),
    ),
    "ChooseOrder": (
        bounded("number", "later than the last one; no more choices than the configuration has"),
        derived("name", "that of a request of the mechanism that chooses"),
        word("round", "an integer", "the label of an entry in the ledgers"),
        bounded("epsilon", "the run's ledger and the book, before anything is drawn"),
        bounded("terms", "below; scores and noise stay within 62 bits"),
    ),
    "ChoiceTerms": (
        derived("norm", "the run's `score`; of three parties l1 or squared_l2 alone"),
        bounded("cliques", "candidates, each once; cells within the policy"),
        derived("sizes", "of the domain"),
        word(
            "weights penalties model scale",
            "integers that fit together; the noise is sized for what one row moves under them",
            "a choice by other public numbers: as much about one row as the order's epsilon says",
        ),
        word(
            "rows",
            "l1: whatever it is, a score wraps where one row moves it no farther; squared_l2: no fewer than the "
            "clients that have dealt say together, sealed",
            "a worse choice",
        ),
    ),
    "OpenOrder": (
        bounded("number", "later than the last one; no more openings than the configuration has"),
        derived("name", "that of a request of the mechanism that opens"),
        word("round", "an integer", "the label of an entry in the ledgers"),
        bounded("sigma", "with fixed rounds no less than the plan's; the run's ledger and the book"),
        bounded("cliques", "candidates, each once; cells within the policy; each is paid for"),
    ),
    "TotalOrder": (
        derived("name", "that of a sum of the mechanism"),
        bounded(
            "number round sigma sensitivity count length asked",
            "what each contributor has sealed its pad to; the run's ledger and the book, the policy's limits",
        ),
    ),
    "DecryptionQuery": (
        word(
            "ciphertexts offsets",
            "ciphertexts of the run's parameters; counted, no more than the flood was sized for",
            "of a choice: an index of another function of the total over all contributors; in simulations with "
            "compute: packed, what is opened",
        ),
        bounded("starts sizes", "inside what it brings; cells of the order's cliques"),
    ),
    "brought to a party": (
        bounded("boxes", "each opens for this run, client and order alone, once; signed where the client is pinned"),
        word(
            "vector brought",
            "as long as the order, as many as it has; the pads of all that were named come off",
            "nothing: what comes out is the honest answer plus a number that depends on nobody's rows; without pads "
            "(simulations) what is opened",
        ),
    ),
    "Sums": (
        bounded("slots sums factors length copies", "inside what is asked for, no more than a store holds; no opening"),
    ),
    "DealPart": (
        derived("public box correction", "sealed by the client for this run, client and party; digests are compared"),
    ),
    "DealFacts": (
        bounded("rho", "no less than the run may still release"),
        word(
            "rows",
            "the same at all three parties, sealed to the crypto party; below 2^40",
            "of a client, with score squared_l2: rows of others count for more; nothing with l1",
        ),
    ),
    "lines between parties": (
        derived("begin", "digest of the announcement; the run's id with each party's nonce"),
        derived("deal", "the same partitions; facts and marks of each slot's two holders; a verdict each"),
        derived("_agree", "digest of the order and of all before it"),
        word(
            "session",
            "malicious: products are checked before anything is opened",
            "semi-honest: wrong results, and what wrong inputs to them open",
        ),
    ),
}

#: Parameters and arrays of every request record.
_REQUESTS: Mapping[str, tuple[Line, ...]] = {
    "common.Join": (derived("schema_hash", "compared with the client's own"),),
    "common.Sizes": (bounded("sigma", _PLAN),),
    "common.RowTotal": (),
    "common.OneWay": (),
    "common.Marginals": (bounded("cliques", _PRICED),),
    "common.Evaluate": (
        bounded("label", "a column"),
        word(
            "total even arrays",
            "up to 2^32 rows; a table on the domain, boxes inside it, trees that end, finite values",
            "how far other tables are from the rows: " + _QUESTION,
        ),
    ),
    "stored.Answers": (bounded("rho", "the whole plan, once"),),
    "finding.FindRanges": (),
    "finding.FindBins": (bounded("cells", "allots cells to the public universe of each column; " + _LAYOUT),),
    "finding.FindCategories": (
        bounded("prefixes", "go on from those that this client was asked about; number and length by the schema"),
    ),
    "finding.Close": (
        word(
            "cells cuts atoms categories",
            "as many as the schema allows, and a schema comes out",
            "the public schema of the run, as who writes one decides it: each mechanism is private under any",
        ),
    ),
    "flaim.Select": (
        bounded("eligible", _PRICED),
        bounded("epsilon", _PLAN),
        word("sigma", "between 2^-53 and 2^53", "another penalty, which is the same on every table"),
        bounded("model_arrays", "arrays that the message has"),
        word(
            "measured sigmas arrays",
            _MODEL + "; measurements likewise",
            "a choice against another model: as much about one row as epsilon says",
        ),
    ),
    "flaim.Measure": (
        bounded("cliques", "candidates; a client adds those that it chose in this round"),
        bounded("one_way", "the plan's price of each marginal, and the budget"),
    ),
    "flaim.BlindDraw": (bounded("eligible", "candidates; no row is looked at"),),
    "distributed_aim.Scores": (
        bounded("eligible", _PRICED),
        word("arrays", _MODEL, "distances from another model: " + _QUESTION),
    ),
    "sketch_aim.FirstLook": (bounded("alone", "the plan: a server that asks so has nothing left to ask with"),),
    "sketch_aim.Sketches": (
        bounded("cliques width", _PRICED + "; up to the option `width`"),
        word("arrays", "groups on the domain, as many as the sketches have", "other groups: " + _QUESTION),
    ),
    "sketch_aim.Arrangement": (
        bounded("cliques width", _PRICED + "; up to the option `width`"),
        word("arrays", "groups on the domain, as many as the sketches have", "other groups: " + _QUESTION),
    ),
    "sketch_aim.Residuals": (
        bounded("cliques weights shapes", _LAYOUT + "; candidates, weights times cells up to 2^31"),
        word("arrays", "groups on the domain, of these shapes", "other groups: " + _QUESTION),
    ),
    "sketch_aim.MeasureAll": (bounded("one_way cliques weights", _LAYOUT + "; weights up to 16"),),
    "mst.Tree": (
        bounded("epsilon", _PLAN),
        word("arrays", _MODEL, "a tree against another model: as much about one row as epsilon says"),
    ),
    "mst.PairSketches": (
        bounded("width", _LAYOUT),
        word("arrays", "groups on the domain", "other groups: " + _QUESTION),
    ),
    "mst.CoarsePairs": (
        bounded("cliques shapes", _LAYOUT + "; candidates"),
        word("arrays", "groups on the domain, of these shapes", "other groups: " + _QUESTION),
    ),
    "privsyn.Resolutions": (bounded("resolutions", "one for each attribute; below"),),
    "privsyn.Resolution": (bounded("ordered widths weights", _LAYOUT + "; weights up to 2^16"),),
    "privsyn.WeightedPairs": (bounded("pairs weights", _LAYOUT + "; weights up to 2^16"),),
    "privsyn.InDifs": (bounded("pairs", _LAYOUT),),
    "heterofedsyn.Projections": (bounded("pairs", _LAYOUT),),
    "fed_dp_ctgan.Descent": (
        bounded("attribute", "an attribute"),
        bounded("multiplier", _PLAN),
        word(
            "arrays",
            "of the run's discriminator's shapes",
            "gradients of other networks: each row's is clipped, and the price is the same",
        ),
    ),
}

#: Message -> its lines: everything that a node, a client or a party gets, and what a refusal tells a server.
REGISTER: Mapping[str, tuple[Line, ...]] = {
    **_NODE,
    **_REFUSED,
    **_ENVELOPE,
    **_SECURE,
    **_INVITED,
    **_PARTIES,
    **_REQUESTS,
}

#: The same, in chapters.
CHAPTERS: Mapping[str, tuple[str, Mapping[str, tuple[Line, ...]]]] = {
    "What a node gets from the SuperLink": ("A holder's machine reads these before anything of a run.", _NODE),
    "What a server gets from a node that refuses": ("In the place of an answer.", _REFUSED),
    "Every request": ("The envelope, and what a sum adds to it.", _ENVELOPE),
    "Parameters and arrays of requests": ("`module.Record`, by the module that defines it.", _REQUESTS),
    "Arrays of secure sums": ("In the order of the message, stage by stage.", _SECURE),
    "What comes with a request to deal or to encrypt": ("It is carried by the server.", _INVITED),
    "What computing parties and a crypto party get": ("From a server, from clients through it, each other.", _PARTIES),
}

__all__ = ["BOUNDED", "CHAPTERS", "DERIVED", "REGISTER", "UNREAD", "WORD", "Line"]
