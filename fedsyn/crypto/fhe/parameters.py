"""Parameters of a run's ciphertexts, derived from public bounds.

SEAL itself refuses less than 128 bits of security.

BFV. A ciphertext of m holds (q/t) m + v; it decrypts exactly while |v| < q/(2t). Worst cases, n the degree, secret and
encryption randomness ternary, errors at most 21 (SEAL's centred binomial):

- fresh: V0 = 21 (2n + 1) + 1. Sums add up, a public factor k multiplies, a public vector adds at most 1.
- square (or product) and relinearisation: v' = 2n (2n + 5) t v + 32 n² (one factor 4 of slack pays for the inexact base
  conversions of the RNS variant).
- from q to the smaller q': v' = v q'/q + n + 1.
- *Flooding*: whoever decrypts sees v, which depends on what was computed. So a fresh encryption of zero is added, and
  an integer uniform in [-F, F) to every coefficient, F >= V n A 2^40, V what v can be: over all A ciphertexts that a
  run may send to the key holder its view is then within 2^-40 (total variation) of one that does not depend on v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

from fedsyn.errors import ConfigError

#: Most bits of q with its special prime for 128 bits of security against a ternary secret (Homomorphic Encryption
#: Standard 2018, as SEAL enforces it).
MOST_BITS = {16384: 438, 32768: 881}
#: Total variation, over a whole run, between what a key holder sees and something that depends on nothing it may not.
STATISTICAL_BITS = 40
#: Ciphertexts that a key holder answers in one run; the next one is refused.
MOST_ANSWERS = 2**20
#: Bits of BFV's plain modulus: the most that SEAL has, so that no bound on data is needed to choose it.
PLAIN_BITS = 60
#: An exact integer stays below this in absolute value: half of the smallest prime with PLAIN_BITS.
LARGEST = 2 ** (PLAIN_BITS - 2)
#: Largest public factor by which a store's counts are multiplied.
MOST_FACTOR = 2**40
#: What the noise of all clients in a slot of a plane stays below: 2^30 times the root of 2^10 times as many clients as
#: are certainly honest, and ten standard deviations.
POOL_REACH = 2.0**40
_ERROR = 21.0


@dataclass(frozen=True)
class Parameters:
    """Public parameters of one run's ciphertexts.

    Attributes:
        degree: n of the ring Z[x]/(x^n + 1).
        primes: bits of the primes of the modulus, the last one for switching keys.
        answer_primes: of these, how many a ciphertext has when it goes to the key holder.
        flood_bits: log2 of F.
        plain_bits: of the plain modulus.
    """

    degree: int
    primes: tuple[int, ...]
    answer_primes: int
    flood_bits: int
    plain_bits: int = PLAIN_BITS

    @property
    def slots(self) -> int:
        """Numbers in one ciphertext."""
        return self.degree

    @property
    def bytes(self) -> int:
        """Size of one fresh ciphertext, at most."""
        return 2 * 8 * self.degree * (len(self.primes) - 1) + 1024


def fresh_noise(degree: int) -> float:
    """Returns V0, the noise of a fresh ciphertext."""
    return _ERROR * (2 * degree + 1) + 1


def product_noise(degree: int, noise: float) -> float:
    """Returns the noise of a product of two ciphertexts of this noise."""
    return 2.0 * degree * (2 * degree + 5) * 2.0**PLAIN_BITS * noise + 32.0 * degree**2


def bfv_for_store(clients: int, products: int = 0) -> Parameters:
    """Returns parameters for sums of fresh ciphertexts, a public factor, one product.

    Numbers are padded, uniform modulo t: no bound here rests on a plaintext's size, a product's neither, since the
    coefficients of batched numbers have any size as it is. Off the counts the pads are taken by one fresh ciphertext
    more, before they are squared; the factor 2 pays for it.

    Args:
        clients: whose ciphertexts are added up.
        products: of one-hot columns that are added up slotwise before they are encrypted again; 0: there are none.
    """

    def noise(degree: int) -> float:
        fresh = fresh_noise(degree)
        counts = product_noise(degree, MOST_FACTOR * (2 * clients * fresh + 1))
        return max(counts, products * product_noise(degree, fresh))

    return with_room(noise, f"a store of {clients} clients")


def with_room(noise: Callable[[int], float], what: str) -> Parameters:
    """Returns the smallest parameters with which numbers of this noise decrypt.

    Args:
        noise: v by the degree.
        what: subject of the refusal.

    Raises:
        ConfigError: the noise does not fit the largest parameters.
    """
    for degree, most in MOST_BITS.items():
        fresh = fresh_noise(degree)
        flood = _flood(degree, 2 * fresh + degree + 2)  # after the switch to q', which brings the noise down to V0
        chosen = _primes(_answer(flood), log2(noise(degree) / fresh), most)
        if chosen is not None:
            return Parameters(degree, *chosen, flood)
    raise ConfigError(f"{what} does not fit the largest parameters there are")


def _flood(degree: int, noise: float) -> int:
    return ceil(log2(noise) + log2(degree) + log2(MOST_ANSWERS) + STATISTICAL_BITS)


def _answer(flood: int) -> float:
    """Returns the bits of q' that keep PLAIN_BITS legible under the flood."""
    return PLAIN_BITS + 1 + flood + 1.1


def _primes(answer: float, more: float, most: int) -> tuple[tuple[int, ...], int] | None:
    """Returns equal primes, as few as possible; None if none fit.

    Some make q' (`answer` bits), the others q/q' (`more` bits); one more switches keys.
    """
    best = None
    for bits in range(40, 55):
        answer_primes = ceil(answer / (bits - 0.01))
        count = answer_primes + ceil(more / (bits - 0.01))
        total = bits * count + bits + 1
        if total <= most and (best is None or (count, total) < best[0]):
            best = ((count, total), ((bits,) * count + (bits + 1,), answer_primes))
    return None if best is None else best[1]
