"""Errors that a user may see.

Each message names what is wrong, where, and what is allowed.

Messages never quote a value of a private table: they name columns, row counts and positions only.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Mapping
from typing import Any

from fedsyn.output import plain


class FedsynError(Exception):
    """Base class of all errors that fedsyn raises on purpose.

    Its text is one line without control characters.
    """

    is_for_people = True

    def __str__(self) -> str:
        return plain(super().__str__(), keep="")


class InputError(FedsynError):
    """Bad configuration or bad data: the command line exits with code 2."""


class ConfigError(InputError):
    """A configuration key or value that cannot be used."""


class UnknownParameter(ConfigError, TypeError, ValueError):
    """A parameter that a synthesizer does not have.

    A TypeError as Python's, a ValueError as scikit-learn's.
    """


class NodeError(ConfigError):
    """A misconfigured node, or one that refuses a run.

    A node tells its server the text of such errors, so each is a fixed sentence: what stands in a file, in the node's
    configuration or in the run's never gets into it. (Beside them it tells the text of a `ProtocolError`, and of a sum
    that cannot be formed: both speak of the request and of public numbers.)
    """


class NotReady(FedsynError):
    """A node whose own table or files stop it.

    Its text says the cause, to the holder alone; a server hears the same words whatever the cause is.
    """


class WaitsForHolder(NodeError):
    """A node that waits for its holder's decision on a run.

    A server asks it again.
    """


class LedgerDamaged(ConfigError):
    """A damaged lifetime ledger.

    A line was changed, lost or moved, or it is older than its last recorded state.

    Attributes:
        line: number of the first line that does not follow, counted from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class SchemaError(InputError):
    """A malformed or unapproved schema, or one that misfits a table."""


class DataError(InputError):
    """A table that is unreadable or breaks its schema's promises."""


class NotFittedError(InputError, ValueError, AttributeError):
    """A request to a synthesizer that has not been fitted.

    An AttributeError, as scikit-learn's.
    """


class BudgetExceeded(FedsynError):
    """A release that would exceed the privacy budget.

    Raised before any noise is drawn.
    """


class NoRoom(BudgetExceeded):
    """A run beyond a limit of its holder, refused before it begins.

    A server is told its text, to ask for less: the holder's limits, and what its ledger has charged. Charges follow
    requests and what was released, never a row: two neighbours that released the same are told the same.
    """


class ProtocolError(FedsynError):
    """A request or reply that does not follow the protocol."""


def refuse(condition: object, sentence: str) -> None:
    """Raises ProtocolError if the condition holds.

    What another party has sent cannot be used, and the text says why.
    """
    if condition:
        raise ProtocolError(sentence)


class RunError(FedsynError):
    """A run that failed for a reason other than its input.

    The command line exits with code 1.

    Attributes:
        can_go_on: whether a run that ended with it may go on (`--resume`) once the reason is gone.
    """

    def __init__(self, message: str, can_go_on: bool = True) -> None:
        super().__init__(message)
        self.can_go_on = can_go_on


class Lost(RunError):
    """A request of the run that too few holders answered.

    For good or for as long as the run had patience.
    """


class Unable(RunError):
    """A node that cannot write or read, or lacks memory.

    Now, and perhaps not in a minute.

    Attributes:
        told: what a server may know of it: a fixed sentence, which says what of the node's own failed.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.told = message


class CannotWrite(Unable):
    """A file that must be on disk first cannot be written.

    Nothing is released.

    Args:
        message: for those whose disk it is; it may name the file.
        error: of the operating system.

    Attributes:
        told: what a server may know of it: a fixed sentence.
    """

    def __init__(self, message: str, error: OSError) -> None:
        super().__init__(message)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "a disk is full" if full else "a file cannot be written"
        self.told = f"{what} at this node; nothing was released (see this node's own log)"


#: What pydantic says of a value, by its kind of problem, for people who know YAML and not Python.
_PLAIN = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "mapping_type": "must be a mapping of keys",
    "model_type": "must have keys below it, such as kind: ...",
    "model_attributes_type": "must have keys below it, such as kind: ...",
    "missing": "is missing",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "invalid_key": "must have text as keys",
}


def plainly(problem: Mapping[str, Any]) -> str:
    """Returns what is wrong with a value, in plain words.

    From one of pydantic's errors: `must be greater than 0`.

    A validator's own sentence stays as it is, without a capital.
    """
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "literal_error" and isinstance(problem.get("input"), str):
        allowed = [word for word in message.split("'")[1::2] if word]
        return message.replace("Input should be", "must be", 1) + nearest(problem["input"], allowed)
    plain = _PLAIN.get(problem["type"]) or message.replace("Input should be", "must be", 1)
    return plain[:1].lower() + plain[1:]


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Returns a clause ' (did you mean X?)', or an empty string.

    X is the allowed word closest to `word`.
    """
    match = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f" (did you mean '{match[0]}'?)" if match else ""
