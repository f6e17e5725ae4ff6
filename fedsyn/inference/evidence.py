"""What a run released and fitted its last model to: kept beside the model, so that its error can be told later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference.measurements import Measurement, merge
from fedsyn.inference.triangulation import axes_of

_FORMAT = 1
_MOST_CELLS = 1 << 27  # of a measured clique


@dataclass(frozen=True, eq=False)
class Evidence:
    """Noisy sums as released, and what is known of their noise.

    Attributes:
        measurements: noisy marginals in counts of the whole federation.
        total: records, as released.
    """

    measurements: tuple[Measurement, ...]
    total: float

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for an npz file: `evidence` (uint8, JSON), and one after the other `values` and `groups` (uint32)."""
        head = {
            "format": _FORMAT,
            "total": float(self.total).hex(),
            "measurements": [
                {
                    "clique": list(m.clique),
                    "sigma": float(m.sigma).hex(),
                    "noises": m.noises,
                    "share": float(m.share).hex(),
                    "groups": m.groups is not None,
                    "beyond": m.beyond,
                }
                for m in self.measurements
            ],
        }
        values = [np.asarray(m.values, np.float64).ravel() for m in self.measurements]
        groups = [np.asarray(own, np.uint32) for m in self.measurements for own in m.groups or ()]
        return {
            "evidence": np.frombuffer(json.dumps(head).encode(), np.uint8).copy(),
            "values": np.concatenate([np.zeros(0), *values]),
            "groups": np.concatenate([np.zeros(0, np.uint32), *groups]),
        }

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, npt.NDArray[Any]]) -> Evidence:
        """What `to_arrays` described, bit for bit.

        Raises:
            ProtocolError: the arrays are malformed or belong to another domain.
        """
        try:
            head = json.loads(np.asarray(arrays["evidence"], np.uint8).tobytes())
            if head["format"] != _FORMAT:
                raise ProtocolError(f"unknown format {head['format']!r} of measurements; this version reads {_FORMAT}")
            values, groups = _Pieces(arrays["values"]), _Pieces(arrays["groups"])
            found = tuple(_measurement(domain, one, values, groups) for one in head["measurements"])
            merge(axes_of(domain), found)  # refuses what no fit could take
            total = float.fromhex(head["total"])
            if not (values.is_done and groups.is_done and 0 < total < float("inf")):
                raise ValueError("other sizes than the head says, or no total")
            return cls(found, total)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ProtocolError("the stored measurements are malformed") from error


class _Pieces:
    """A flat array, taken piece by piece."""

    def __init__(self, flat: npt.NDArray[Any]) -> None:
        self._flat, self._at = np.asarray(flat).ravel(), 0

    def take(self, size: int) -> npt.NDArray[Any]:
        self._at += size
        if self._at > len(self._flat):
            raise ValueError("too short")
        return self._flat[self._at - size : self._at]

    @property
    def is_done(self) -> bool:
        return self._at == len(self._flat)


def _measurement(domain: Domain, head: Mapping[str, Any], values: _Pieces, groups: _Pieces) -> Measurement:
    clique = tuple(map(str, head["clique"]))
    shape, noises, share = domain.shape_of(clique), head["noises"], float.fromhex(head["share"])
    if not 0 < share <= 1 or not (noises is None or (type(noises) is int and noises > 0)):
        raise ValueError("a share or a number of noises that cannot be")
    if domain.size(clique) > _MOST_CELLS:
        raise ValueError("a clique that no fit can take")
    own = None
    if head["groups"]:
        own = tuple(groups.take(size).astype(np.int64) for size in shape)
        if any(len(part) and int(part.max()) >= len(part) for part in own):
            raise ValueError("more groups than values")
        shape = tuple(int(part.max()) + 1 for part in own)
    taken = np.asarray(values.take(int(np.prod(shape, dtype=np.int64))), np.float64).reshape(shape)
    beyond = head.get("beyond", False)  # runs of before do not say
    if type(beyond) is not bool:
        raise ValueError("residuals or not")
    return Measurement(clique, taken, float.fromhex(head["sigma"]), noises, own, share, beyond)
