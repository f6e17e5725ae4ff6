"""All three parties of a computation in one process, a thread each: for benchmarks and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedsyn.crypto.mpc.network import LocalNetwork, Network
from fedsyn.crypto.mpc.session import Session
from fedsyn.crypto.mpc.shared import PARTIES

T = TypeVar("T")


def in_threads(
    program: Callable[[Session], T],
    keys: Sequence[bytes],
    network: LocalNetwork | None = None,
    make: Callable[[int, tuple[bytes, bytes], Network], Session] = Session,
) -> list[T]:
    """What `program` returns at each party; its first error ends the other parties' waiting, and is raised.

    `keys` are those of the slots 0, 1 and 2; `make` builds a party's session (say, a malicious-secure one).
    """
    lines = network or LocalNetwork()
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            own = keys[index], keys[(index + 1) % PARTIES]
            results[index] = program(make(index, own, lines.endpoints[index]))
        except BaseException as error:  # to be raised in the caller's thread
            errors.append(error)
            lines.abort(f"the computation ended because party {index} failed")

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(PARTIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(PARTIES)]
