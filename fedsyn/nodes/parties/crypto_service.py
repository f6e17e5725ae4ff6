"""The crypto party as a service: `fedsyn party serve party.yaml` with `role: crypto`.

It talks to operators alone. The keys of a run are made when the run is announced and are gone when it ends; clients
know them by a signature of the key whose certificate stands on this party's card.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.nodes.lifetime.party_ledger import called
from fedsyn.nodes.parties import messages
from fedsyn.nodes.parties.checks import Host
from fedsyn.nodes.parties.crypto import KeyHolder
from fedsyn.nodes.parties.interface import ChooseOrder, OpenOrder, TotalOrder
from fedsyn.nodes.parties.policy import PartyFile
from fedsyn.nodes.parties.questions import read_asked, read_sums
from fedsyn.nodes.parties.serving import OPERATOR, Serving
from fedsyn.nodes.service.certificates import signer
from fedsyn.nodes.service.party_keys import certificate_of, load_party
from fedsyn.nodes.service.tls import der
from fedsyn.randomness import Randomness

K = TypeVar("K", ChooseOrder, OpenOrder, TotalOrder)
_log = logging.getLogger("fedsyn.party")


class CryptoService(Serving[KeyHolder]):
    """The service of a crypto party.

    Args:
        file: `party.yaml`, with absolute file names.

    Raises:
        ConfigError: a key, card or certificate does not fit, the ledger cannot be used, or TenSEAL is not installed.
    """

    methods = ("begin", "admit", "unpad", "choose", "open", "total", "sums")

    def __init__(self, file: PartyFile) -> None:
        from fedsyn.crypto.fhe.seal import sealapi

        sealapi()
        card, credentials, pair = load_party(Path(file.folder))
        certificates = [certificate_of(Path(path)) for path in file.operators]
        pins = {der(text): OPERATOR for text in certificates}
        if der(card.certificate) in pins:
            raise ConfigError("operators: one of them has this party's own key; each side has its own")
        super().__init__(file, (card,), pins, certificates, credentials)
        limits = file.policy.limits
        self.most = 64 * max(limits.entries, limits.cells) + (64 << 20)  # a slot of a ciphertext takes up to 64 bytes
        self.host = Host(pair, file.policy, Randomness(None), self.book, self.cards)
        self._sign = signer(credentials)

    def begin(self, request: bytes, tag: str) -> bytes:
        announcement = messages.read_announcement(request)
        if announcement.nonce.hex() != tag:
            raise ProtocolError("the announcement is malformed")
        current = self.entered(tag, lambda: (KeyHolder(self.host, self._sign), lambda reason: None))
        with current.lock:
            begun = self.computed(current, lambda: current.party.begin(announcement))
        _log.info(
            "run %s begins: %s, up to %.4g rho",
            called(begun.run.hex(), announcement.config.runtime.run),
            announcement.config.mechanism.name,
            announcement.rho,
        )
        keys = begun.keys
        blobs = [keys.public, keys.relinearise, begun.seal, begun.signature]
        return self.answer(current, {"run": begun.run.hex(), "adds": begun.adds}, blobs)

    def admit(self, request: bytes, tag: str) -> bytes:
        order, boxes = messages.read_boxes(request)
        with self.order(tag) as current:
            refused = self.computed(current, lambda: current.party.admit(order, boxes))
        return self.answer(current, {"refused": sorted(refused.items())}, [])

    def unpad(self, request: bytes, tag: str) -> bytes:
        with self.order(tag) as current:
            minus = self.computed(current, lambda: current.party.unpad())
        return self.answer(current, {}, minus)

    def choose(self, request: bytes, tag: str) -> bytes:
        order, blobs = _order_of(ChooseOrder, request)
        asked = read_asked(blobs)
        return self._numbers(tag, lambda party: party.choose(order, asked))

    def open(self, request: bytes, tag: str) -> bytes:
        order, blobs = _order_of(OpenOrder, request)
        return self._numbers(tag, lambda party: party.open(order, [bytes(blob) for blob in blobs]))

    def total(self, request: bytes, tag: str) -> bytes:
        order, blobs = _order_of(TotalOrder, request)
        vector = messages.read_vector(blobs)
        return self._numbers(tag, lambda party: party.total(order, vector))

    def sums(self, request: bytes, tag: str) -> bytes:
        _, blobs = messages.unpack(request)
        asked, sums = read_sums(blobs)
        with self.order(tag) as current:
            again = self.computed(current, lambda: current.party.sums(asked, sums))
        return self.answer(current, {}, again)

    def _numbers(self, tag: str, step: Callable[[KeyHolder], npt.NDArray[np.int64]]) -> bytes:
        with self.order(tag) as current:
            numbers = self.computed(current, lambda: step(current.party))
        return self.answer(current, {}, [numbers.astype("<i8").tobytes()])


def _order_of(kind: type[K], request: bytes) -> tuple[K, list[memoryview]]:
    """An order of the kind that a call takes, and what it brings; ProtocolError for any other."""
    order, blobs = messages.read_order_with(request)
    if not isinstance(order, kind):
        raise ProtocolError("an order is malformed")
    return order, blobs
