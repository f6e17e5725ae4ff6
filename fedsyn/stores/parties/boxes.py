"""Pads of clients' numbers, with seeds sealed to the crypto party.

The seed comes with what the client assumed.

A client adds a pad to every number that it sends through the server: uniform modulo 2^64 in a sum, modulo the plain
modulus t in a store, where the padded number is encrypted besides. The pad's seed lies in a box that the crypto party
alone opens, for the contributors that the server names, and each box in one total or one store only.

*What that proves.* Let a client's numbers be v, its pad p, the server's view of it x = v + p: uniform, and independent
of v. Whatever the server computes from such views and hands over as a total, the crypto party takes off the pads of the
contributors that were named, so what comes out is

    f(x_1, ..., x_n) - Σ p_k = Σ v_k + [ f(x_1, ..., x_n) - Σ x_k ],

the sum over all named contributors, plus a number that is a function of the x alone and therefore of nobody's rows.
(An opening of a store has γ v_k plus the client's noise in the place of v_k, and γ p_k + r_k in that of p_k, with the γ
and the slots that the crypto party derives from the order.) A total of one client, a scaled one, one without its noise,
another function: each is post-processing of the honest answer, and of no use before it. The pads of clients that do not
exist, or are the server's, it knows: then the honest ones' sum comes out, with the honest ones' shares of the noise.

*Why openings are no ciphertexts of a lattice.* The proof needs f to be of the x alone. For choices the server gets what
takes the pads off, encrypted, and so holds encrypted counts. If what is opened were decrypted with that key, f could be
of the counts: a million times v_j on top of the honest answer, whose noise is then nothing. So each client sends its
counts twice, under pads of two different parts of one stream: encrypted, for choices, and as they are, with the noise,
for openings. What is brought to be opened is numbers, which the server has computed from what it can read, and
nothing is decrypted for them. What it learned by choices it may put into f: as any post-processing of choices.

*What is sealed to.* A box opens only with the run (its id, configuration, schema and cliques), the client's partition,
and the facts that the client sized its noise by, byte for byte: of a sum the whole order but for who contributed
(request, round, number, sigma, sensitivity, count, length, clients asked), of a store the budget that the client was
told and its public row count. So none of these is the server's word. A number is ordered once, hence no box serves
twice. Where the configuration pins the clients' keys the box carries a signature by the client's over all of that.

X25519, HKDF-SHA256 and ChaCha20-Poly1305, one key pair of the client for one box, as in
`fedsyn.stores.parties.sealing`. The pad is a ChaCha20 stream; a sum of such ciphertexts under the sum of their keys is
the additively homomorphic stream cipher of Castelluccia, Mykletun & Tsudik 2005.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.bfv import Residues, centred_all, less_modulo, plus_modulo, residues, times_modulo
from fedsyn.crypto.fhe.slots import Piece, SlotLayout
from fedsyn.crypto.primitives import (
    KEY,
    SIGNATURE,
    TAG,
    Identity,
    KeyPair,
    derive,
    key_stream,
    seal,
    signed_by,
    unseal,
    usable_public_key,
)
from fedsyn.errors import ProtocolError
from fedsyn.stores.parties.interface import TotalOrder
from fedsyn.stores.parties.messages import STORE_VERSION, pack
from fedsyn.stores.parties.sealing import DealFacts, Fault, RefusedDeal

_PURPOSE = b"fedsyn crypto party: box"
_UNSIGNED = KEY + KEY + TAG


def of_sum(order: TotalOrder) -> bytes:
    """Returns what a sum's box is sealed to, beside run and client."""
    return b"sum" + pack(TotalOrder, order)


def of_deal(facts: DealFacts) -> bytes:
    """Returns what a store's box is sealed to, beside run and client."""
    return b"deal" + facts.to_bytes()


def seal_box(facts: bytes, run: bytes, partition: int, key: bytes, identity: Identity | None) -> tuple[bytes, bytes]:
    """A new seed, and the box with it.

    Args:
        facts: `of_sum` or `of_deal`.
        run: what the run is (`fedsyn.stores.parties.interface.sealed_for`).
        partition: of the client.
        key: X25519 public key of the crypto party in this run.
        identity: signs, where the configuration pins the client's key.

    Raises:
        ProtocolError: the key is none.
    """
    if len(key) != KEY or not usable_public_key(key):
        raise ProtocolError("a pad is sealed to a usable key of the crypto party")
    pair, seed, bound = KeyPair(), os.urandom(KEY), _bound(facts, run, partition)
    box_key = derive(pair.agree(key), run, _PURPOSE, (STORE_VERSION, partition), (pair.public, key))
    box = pair.public + seal(box_key, seed, bound)
    return seed, box + (b"" if identity is None else identity.sign(_signed(bound, box)))


def open_box(box: bytes, facts: bytes, run: bytes, partition: int, pair: KeyPair, signer: bytes | None) -> bytes:
    """The seed.

    Args:
        box: of a client.
        facts: those of the order, or those that the box says it was sealed with.
        run: as for `seal_box`.
        partition: the contributor that the server names.
        pair: of the crypto party, in this run.
        signer: public key of that client; None where none is pinned.

    Raises:
        RefusedDeal: it was not sealed for this, is not signed by this client, or is damaged.
    """
    if len(box) not in (_UNSIGNED, _UNSIGNED + SIGNATURE):
        raise RefusedDeal(Fault.MALFORMED)
    bound, inner = _bound(facts, run, partition), box[:_UNSIGNED]
    if signer is not None and not signed_by(signer, box[_UNSIGNED:], _signed(bound, inner)):
        raise RefusedDeal(Fault.UNSIGNED)
    try:
        secret = pair.agree(inner[:KEY])
    except ProtocolError:
        raise RefusedDeal(Fault.MALFORMED) from None
    box_key = derive(secret, run, _PURPOSE, (STORE_VERSION, partition), (inner[:KEY], pair.public))
    seed = unseal(box_key, inner[KEY:], bound)
    if seed is None:
        raise RefusedDeal(Fault.SEALED)
    return seed


class Pads:
    """Pads of a store: one client's, or all contributors' added up.

    Those of the encrypted counts come first, then those of the numbers for openings: the counts again, and the planes
    of noise.

    Args:
        layout: of the store.
        planes: of noise.
        modulus: t.
    """

    def __init__(self, layout: SlotLayout, planes: int, modulus: int) -> None:
        self.layout, self.planes, self.modulus = layout, planes, modulus
        self.closed = False  # whether what takes them off was given away
        self.total = np.zeros(self.length, np.uint64)

    @property
    def length(self) -> int:
        """One client's numbers: its counts twice, and each plane."""
        return 2 * self.layout.entries + self.planes * self.layout.noisy

    def add(self, seed: bytes) -> Pads:
        """Returns these pads with one more client's."""
        self.total = plus_modulo(
            self.total, residues(partial(key_stream, seed), self.modulus, self.length), self.modulus
        )
        return self

    def on(self, counts: npt.NDArray[np.int64], planes: npt.NDArray[np.int64]) -> tuple[Residues, Residues]:
        """Returns a client's padded numbers, from 0 to t - 1.

        The counts are to be encrypted; counts and planes are for openings.
        """
        plain = np.concatenate([counts, counts, planes.reshape(-1)])
        if len(plain) != self.length:
            raise ProtocolError("the pads are not those of these vectors")
        padded = plus_modulo(np.mod(plain, self.modulus).astype(np.uint64), self.total, self.modulus)
        return padded[: self.layout.entries], padded[self.layout.entries :]

    def minus(self) -> npt.NDArray[np.int64]:
        """Returns what takes the pads off the counts, modulo t."""
        return ((np.uint64(self.modulus) - self.total[: self.layout.entries]) % np.uint64(self.modulus)).astype(
            np.int64
        )

    def read(self, brought: Sequence[bytes], cells: int) -> Residues:
        """Reads the padded numbers of an opening.

        Raises ProtocolError for a wrong number of them.
        """
        if len(brought) != 1 or len(brought[0]) != 8 * cells:
            raise ProtocolError(f"an opening brings something else than its {cells} padded numbers")
        return np.frombuffer(brought[0], "<u8").astype(np.uint64) % np.uint64(self.modulus)

    def off(self, padded: Residues, pieces: Sequence[Piece], factor: int) -> npt.NDArray[np.int64]:
        """Returns an opening without its pads, as integers around 0."""
        carried = opening_of(self.total[self.layout.entries :], self.layout, pieces, factor, self.modulus)
        return centred_all(less_modulo(padded, carried, self.modulus), self.modulus)


def opening_of(numbers: Residues, layout: SlotLayout, pieces: Sequence[Piece], factor: int, modulus: int) -> Residues:
    """Returns γ times an opening's counts plus its noise.

    They follow one piece after the other; the numbers are padded ones, or their pads.

    Args:
        numbers: counts, then each plane.
        layout: of the store.
        pieces: of the opening.
        factor: γ.
        modulus: t.
    """
    parts = [np.zeros(0, np.uint64)]
    for piece in pieces:
        start, size = piece.index * layout.slots + piece.start, piece.stop - piece.start
        noise = layout.entries + piece.plane * layout.noisy + piece.start
        counts = times_modulo(numbers[start : start + size], factor, modulus)
        parts.append(plus_modulo(counts, numbers[noise : noise + size], modulus))
    return np.concatenate(parts)


def _bound(facts: bytes, run: bytes, partition: int) -> bytes:
    """Returns the associated data of the encrypted seed.

    Every field has a fixed length or is the last one.
    """
    return _PURPOSE + struct.pack("<qq", STORE_VERSION, partition) + hashlib.sha256(run).digest() + facts


def _signed(bound: bytes, box: bytes) -> bytes:
    return hashlib.sha256(b"fedsyn crypto party: signed" + hashlib.sha256(bound).digest() + box).digest()
