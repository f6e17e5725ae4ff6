"""What a step of a run is, at a party of any role: nothing after an error, and only sentences of our own leave."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from fedsyn.errors import FedsynError, RunError


class Stepping(Protocol):
    """A party's half of one run: why it is over, once it is, and the processor seconds of its steps."""

    over: str | None
    cpu: float

    def stop(self, reason: str) -> None: ...


S = TypeVar("S", bound=Stepping)
P = ParamSpec("P")
T = TypeVar("T")


def step(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A step of a run: after an error the run is over, and only sentences of our own leave."""

    @functools.wraps(method)
    def stepped(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.over is not None:
            raise RunError(f"the run is over at this party: {self.over}")
        started = time.thread_time()
        try:
            return method(self, *args, **kwargs)
        except FedsynError as error:
            self.stop(str(error))
            raise
        except Exception as error:
            self.stop("an internal error")
            raise RunError(f"an internal error ({type(error).__name__})") from error
        finally:
            self.cpu += time.thread_time() - started

    return stepped
