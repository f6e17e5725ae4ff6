"""The crypto party as a service, as a deployment's server drives it. If it refuses or is gone, the run is over."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.question import DecryptionQuery, Sums
from fedsyn.crypto.fhe.seal import PublicKeys
from fedsyn.errors import FedsynError, RunError
from fedsyn.nodes.parties import messages
from fedsyn.nodes.parties.interface import Announcement, Begun, ChooseOrder, OpenOrder, PartyCost, TotalOrder
from fedsyn.nodes.parties.lines import LOST, TAG, cut
from fedsyn.nodes.parties.questions import asked_blobs, sums_blobs
from fedsyn.nodes.parties.serving import METHOD
from fedsyn.nodes.service.party_keys import load_credentials
from fedsyn.nodes.service.tls import channel_to, trouble_with
from fedsyn.settings import PartyCard

_CONNECT = 10.0  # seconds


class RemoteCryptoParty:
    """`CryptoParty` that is a service.

    Args:
        node: its card.
        operator: folder with the key by which it knows this server (`fedsyn party keygen --operator`).
        timeout: seconds that one call may take.

    Raises:
        ConfigError: the folder does not hold the keys.
    """

    def __init__(self, node: PartyCard, operator: str | Path, timeout: float = 600.0) -> None:
        self.node, self.timeout = node, timeout
        self._credentials = load_credentials(Path(operator))
        self._channel: grpc.Channel | None = None
        self._watch: Any = None
        self._tag = ""
        self.costs = PartyCost()

    def begin(self, announcement: Announcement) -> Begun:
        self.end()
        node, credentials = self.node, self._credentials
        self._channel, self._tag = channel_to(node.address, node.certificate, credentials), announcement.nonce.hex()
        why = trouble_with(node.address, node.certificate, credentials)
        if why is None:
            try:
                grpc.channel_ready_future(self._channel).result(_CONNECT)
            except grpc.FutureTimeoutError:
                why = "does not answer"
        if why is not None:
            self._fail(why)
        facts, blobs = self._call("begin", messages.announcement_bytes(announcement))
        self._watch = self._channel.unary_stream(METHOD + "watch")(b"", metadata=((TAG, self._tag),))
        try:
            next(self._watch)
            public, relinearise, seal, signature = (bytes(blob) for blob in blobs)
            keys = PublicKeys(public, relinearise)
            return Begun(bytes.fromhex(facts["run"]), keys, seal, signature, bool(facts["adds"]))
        except (grpc.RpcError, StopIteration):
            self._fail("has dropped the run")
        except (ValueError, KeyError, TypeError):
            self._fail("gave a malformed answer")
        raise AssertionError  # _fail raises

    def choose(self, order: ChooseOrder, asked: DecryptionQuery) -> npt.NDArray[np.int64]:
        return self._numbers("choose", messages.order_with(order, asked_blobs(asked)))

    def open(self, order: OpenOrder, brought: Sequence[bytes]) -> npt.NDArray[np.int64]:
        return self._numbers("open", messages.order_with(order, list(brought)))

    def admit(self, order: TotalOrder | None, boxes: Mapping[int, bytes]) -> dict[int, str]:
        facts, _ = self._call("admit", messages.boxes_bytes(order, boxes))
        try:
            return {int(partition): str(reason) for partition, reason in facts["refused"]}
        except (KeyError, TypeError, ValueError):
            self._fail("gave a malformed answer")
        raise AssertionError  # _fail raises

    def total(self, order: TotalOrder, vector: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return self._numbers("total", messages.order_with(order, [vector.astype("<u8", copy=False).tobytes()]))

    def unpad(self) -> list[bytes]:
        _, blobs = self._call("unpad", messages.pack({}))
        return [bytes(blob) for blob in blobs]

    def sums(self, asked: DecryptionQuery, sums: Sums) -> list[bytes]:
        _, blobs = self._call("sums", messages.pack({}, sums_blobs(asked, sums)))
        return [bytes(blob) for blob in blobs]

    def end(self) -> None:
        """Tells the party, as far as it is there; never an error."""
        if self._channel is None:
            return
        with contextlib.suppress(grpc.RpcError):
            self._future("end", b"", 5.0).result()
        if self._watch is not None:
            self._watch.cancel()
        self._channel.close()
        self._channel, self._watch = None, None

    def _numbers(self, method: str, message: bytes) -> npt.NDArray[np.int64]:
        _, blobs = self._call(method, message)
        if len(blobs) != 1 or len(blobs[0]) % 8:
            self._fail("gave a malformed answer")
        return np.frombuffer(blobs[0], "<i8").astype(np.int64)

    def _future(self, method: str, message: bytes, timeout: float) -> Any:
        assert self._channel is not None
        call = self._channel.stream_unary(METHOD + method)
        return call.future(cut(message), timeout=timeout, metadata=((TAG, self._tag),))

    def _call(self, method: str, message: bytes) -> tuple[dict[str, Any], list[memoryview]]:
        if self._channel is None:
            raise RunError("the crypto party has no run: it was not announced, or it is over")
        try:
            facts, blobs = messages.unpack(self._future(method, message, self.timeout).result())
            cost = facts["cost"]
            self.costs = PartyCost(int(cost["bytes_sent"]), int(cost["rounds"]), float(cost["cpu"]))
            return facts, blobs
        except grpc.RpcError as error:
            code, text = error.code().name, str(error.details())
            if code == "UNAVAILABLE":
                self._fail(LOST)
            if code == "DEADLINE_EXCEEDED":
                self._fail(f"has not answered for {self.timeout:g} seconds")
            self._fail(text if code == "RESOURCE_EXHAUSTED" else f"has ended the run: {text}")
        except (FedsynError, KeyError, TypeError, ValueError):
            self._fail("gave a malformed answer")
        raise AssertionError  # _fail raises

    def _fail(self, sentence: str) -> None:
        self.end()
        raise RunError(f"the crypto party '{self.node.name}' ({self.node.address}) {sentence}; nothing was opened")
