"""The errors a user may see. Each message names what is wrong, where, and what is allowed.

Messages never quote a value of a private table: they name columns, row counts and positions only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedsynError(Exception):
    """Base class of all errors that fedsyn raises on purpose."""


class InputError(FedsynError):
    """Bad configuration or bad data: the command line exits with code 2."""


class ConfigError(InputError):
    """A configuration key or value that cannot be used."""


class NodeError(ConfigError):
    """A node that is set up wrongly, or that refuses the run that it is asked to join.

    A node tells its server the text of such errors, so each is a fixed sentence: what stands in a file, in the node's
    configuration or in the run's never gets into it. (Beside them it tells the text of a `ProtocolError`, and of a sum
    that cannot be formed: both speak of the request and of public numbers.)
    """


class SchemaError(InputError):
    """A schema that is malformed, not approved, or does not match a table."""


class DataError(InputError):
    """A table that cannot be read or does not hold what the schema promises."""


class CellError(DataError):
    """A table whose cells are not what the schema promises: that is a fact about its rows, and stays with them."""


class NotFittedError(InputError, ValueError, AttributeError):
    """Something is asked of a synthesizer that has not been fitted; an AttributeError, as scikit-learn's."""


class BudgetExceeded(FedsynError):
    """A release that would exceed the privacy budget; raised before any noise is drawn."""


class ProtocolError(FedsynError):
    """A request or reply that does not follow the protocol."""


class RunError(FedsynError):
    """The run failed for a reason other than its input: the command line exits with code 1."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A clause ' (did you mean X?)' for the allowed word closest to `word`, or an empty string."""
    match = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""
