"""What the computation asks the key holder."""

from __future__ import annotations

from dataclasses import dataclass

from fedsyn.errors import ProtocolError


@dataclass(frozen=True)
class Asked:
    """What the computation sends to be decrypted.

    Attributes:
        ciphertexts: their slots, one after the other, are numbered from 0.
        starts: (m,) first slot of each sum that is asked for.
        sizes: (m,) slots of each.
        offsets: (m,) what is added to each of them after the weight; below t.
    """

    ciphertexts: tuple[bytes, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...] = ()

    def check(self, slots: int) -> None:
        """ProtocolError if the ranges do not lie in the slots."""
        whole = len(self.ciphertexts) * slots
        if len(self.starts) != len(self.sizes) or any(
            not 0 <= start < start + size <= whole for start, size in zip(self.starts, self.sizes, strict=True)
        ):
            raise ProtocolError("a question to the key holder names slots that it does not bring")
