"""Machines that are none: network namespaces, each with an address of its own, joined by a bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


class Namespaces:
    """Some network namespaces on a bridge; `close` removes them.

    Raises:
        OSError: this machine or this user cannot make them; the text says why.
    """

    def __init__(self, count: int = 3) -> None:
        self.tag, self.net = f"fs{os.getpid() % 100_000}", f"10.{100 + os.getpid() % 100}.{os.getpid() % 250}"
        self.hosts = tuple(f"{self.net}.{10 + index}" for index in range(count))
        if shutil.which("ip") is None or os.geteuid() != 0:
            raise OSError("network namespaces need root and the command 'ip'")
        try:
            self._ip(f"link add {self.tag}b type bridge", f"addr add {self.net}.1/24 dev {self.tag}b")
            self._ip(f"link set {self.tag}b up")
            for index, host in enumerate(self.hosts):
                name, link = self.name(index), f"{self.tag}v{index}"
                self._ip(f"netns add {name}", f"link add {link} type veth peer name eth0 netns {name}")
                self._ip(f"link set {link} master {self.tag}b up", f"-n {name} addr add {host}/24 dev eth0")
                self._ip(f"-n {name} link set eth0 up", f"-n {name} link set lo up")
        except OSError:
            self.close()
            raise

    def name(self, index: int) -> str:
        return f"{self.tag}n{index}"

    def prefix(self, index: int) -> list[str]:
        """What to put before a command that is to run there."""
        return ["ip", "netns", "exec", self.name(index)]

    def cut(self, index: int, state: str = "down") -> None:
        """Takes a party's cable out, or puts it back (`up`)."""
        self._ip(f"link set {self.tag}v{index} {state}")

    def close(self) -> None:
        places = range(len(self.hosts))
        links = (f"link del {self.tag}v{index}" for index in places)  # at once; with its namespace it would go later
        for command in (*links, *(f"netns del {self.name(index)}" for index in places), f"link del {self.tag}b"):
            with contextlib.suppress(OSError):
                self._ip(command)

    def _ip(self, *commands: str) -> None:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"ip {command}: {done.stderr.strip()}")


@contextlib.contextmanager
def namespaces_or_skip(count: int) -> Iterator[Namespaces]:
    """Some namespaces that go with the block; where none can be made, the test is skipped."""
    try:
        made = Namespaces(count)
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        yield made
    finally:
        made.close()
