"""Exceptions that end a check early, and errors that checks provoke.

Provoked errors are kept and not printed. They are told apart from an author's.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class Skipped(Exception):
    """Raised by a check that does not apply; its text says why."""


class ProvokedError(RuntimeError):
    """Error of a client that a check lets fail."""


class _Keep(logging.Handler):
    def __init__(self, errors: list[BaseException]) -> None:
        super().__init__()
        self.errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(failure := getattr(record, "failure", None), BaseException):
            self.errors.append(failure)


@contextmanager
def errors_kept(errors: list[BaseException]) -> Iterator[None]:
    """Keeps errors that the logger 'fedsyn' gets, without printing them.

    Whoever keeps them already, outside of this block, has them too.
    """
    logger = logging.getLogger("fedsyn")
    before = logger.handlers, logger.propagate
    outer = [handler for handler in logger.handlers if isinstance(handler, _Keep)]
    logger.handlers, logger.propagate = [_Keep(errors), *outer], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


def described(error: BaseException) -> str:
    """Describes an error, and the place that raised it."""
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}{_place(error)}"


def raised_by(error: BaseException) -> str:
    """Names an error's kind and place.

    They are equal for all that one line raises.
    """
    return f"{type(error).__name__}{_place(error) or error}"


def _place(error: BaseException) -> str:
    """Returns words on who raised an error.

    It is the author's code, or the nearest to it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    author_frames = [frame for frame in frames if "site-packages" not in frame.filename] or list(frames)
    return f" at {author_frames[-1].filename}:{author_frames[-1].lineno}" if author_frames else ""
