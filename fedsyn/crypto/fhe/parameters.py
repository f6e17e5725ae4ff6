"""Parameters of a run's ciphertexts, derived from public bounds; SEAL itself refuses less than 128 bits of security.

BFV. A ciphertext of m holds (q/t) m + v; it decrypts exactly while |v| < q/(2t). Worst cases, n the degree, secret and
encryption randomness ternary, errors at most 21 (SEAL's centred binomial):

- fresh: V0 = 21 (2n + 1) + 1. Sums add up, a public factor k multiplies, a public vector adds at most 1.
- square (or product) and relinearisation: v' = 2n (2n + 5) t v + 32 n² (one factor 4 of slack pays for the inexact base
  conversions of the RNS variant).
- from q to the smaller q': v' = v q'/q + n + 1.
- *Flooding*: whoever decrypts sees v, which depends on what was computed. So a fresh encryption of zero is added, and
  an integer uniform in [-F, F) to every coefficient, F >= V n A 2^40, V what v can be: over all A ciphertexts that a
  run may send to the key holder its view is then within 2^-40 (total variation) of one that does not depend on v.

CKKS. A real x is held as S x + v, S the scale. A real number has no exact answer, so sizes here are typical ones with
eight standard deviations of room: v is 3.2 sqrt(4n/3) for a fresh ciphertext (and as much for
rescaling). What a selector, encoded in doubles, does to it is larger for large tables; `fedsyn.crypto.fhe.ckks` says
what that means. The flood has to be far above v, and S far above the flood, so S has two primes, and
every product costs both. What is left is `ckks_error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt

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
CKKS_PRIME = 54  # bits; the scale has two
#: Opened reals are rounded to this part of a record: well above `ckks_error`, far below any noise.
CKKS_GRID = 2**10
#: What the noise of all clients in a slot of a plane stays below: 2^30 times the root of 2^10 times as many clients as
#: are certainly honest, and ten standard deviations.
POOL_REACH = 2.0**40
_CKKS_ANSWERS = 2**14
CKKS_LARGEST = 2**48  # of a number that is opened
_CKKS_WHOLE = 3  # primes that are left when a number is opened: the scale, and 50 bits before the point
_ERROR = 21.0


@dataclass(frozen=True)
class Parameters:
    """Public parameters of one run's ciphertexts.

    Attributes:
        scheme: 'bfv' or 'ckks'.
        degree: n of the ring Z[x]/(x^n + 1).
        primes: bits of the primes of the modulus, the last one for switching keys.
        answer_primes: of these, how many a ciphertext has when it goes to the key holder.
        flood_bits: log2 of F.
        plain_bits: of BFV's plain modulus; 0 for CKKS.
        rotations: keys for rotations by so many powers of two (BFV: 0 or 1, for all of them).
    """

    scheme: str
    degree: int
    primes: tuple[int, ...]
    answer_primes: int
    flood_bits: int
    plain_bits: int = 0
    rotations: int = 0

    @property
    def slots(self) -> int:
        """Numbers in one ciphertext."""
        return self.degree if self.scheme == "bfv" else self.degree // 2

    @property
    def bytes(self) -> int:
        """Size of one fresh ciphertext, at most."""
        return 2 * 8 * self.degree * (len(self.primes) - 1) + 1024


def fresh_noise(degree: int) -> float:
    """V0."""
    return _ERROR * (2 * degree + 1) + 1


def product_noise(degree: int, noise: float) -> float:
    """What a product of two ciphertexts of this noise has."""
    return 2.0 * degree * (2 * degree + 5) * 2.0**PLAIN_BITS * noise + 32.0 * degree**2


def bfv_for_store(clients: int, products: int = 0, naive: bool = False) -> Parameters:
    """For a store: sums of fresh ciphertexts, a public factor, one product.

    Numbers are padded, uniform modulo t: no bound here rests on a plaintext's size, a product's neither, since the
    coefficients of batched numbers have any size as it is. Off the counts the pads are taken by one fresh ciphertext
    more, before they are squared; the factor 2 pays for it.

    Args:
        clients: whose ciphertexts are added up.
        products: of one-hot columns that are added up slotwise before they are encrypted again; 0: there are none.
        naive: whether sums of products are also formed by rotations, and moved by a selector.
    """
    for degree, most in MOST_BITS.items():
        fresh = fresh_noise(degree)
        noise = product_noise(degree, MOST_FACTOR * (2 * clients * fresh + 1))
        if products:
            columns = products * product_noise(degree, fresh)
            # The sum over n slots doubles log2(n) times; a selector has coefficients up to t/2; n cells are combined.
            noise = max(noise, (columns + 2.0**22) * degree**3 * 2.0 ** (PLAIN_BITS - 1) if naive else columns)
        flood = _flood(degree, 2 * fresh + degree + 2)  # after the switch to q', which brings the noise down to V0
        chosen = _primes(_answer(flood), log2(noise / fresh), most)
        if chosen is not None:
            return Parameters("bfv", degree, *chosen, flood, PLAIN_BITS, int(naive))
    raise ConfigError(f"a store of {clients} clients does not fit the largest parameters there are")


def _flood(degree: int, noise: float) -> int:
    return ceil(log2(noise) + log2(degree) + log2(MOST_ANSWERS) + STATISTICAL_BITS)


def _answer(flood: int) -> float:
    """Bits of q' in which the flood and what it drowns leave a number of PLAIN_BITS legible."""
    return PLAIN_BITS + 1 + flood + 1.1


def _primes(answer: float, more: float, most: int) -> tuple[tuple[int, ...], int] | None:
    """Equal primes, as few as possible: some make q' (bits), others q/q' (`more` bits); one more switches keys."""
    best = None
    for bits in range(40, 55):
        kept = ceil(answer / (bits - 0.01))
        count = kept + ceil(more / (bits - 0.01))
        total = bits * count + bits + 1
        if total <= most and (best is None or (count, total) < best[0]):
            best = ((count, total), ((bits,) * count + (bits + 1,), kept))
    return None if best is None else best[1]


def ckks_for_store(clients: int, products: int, rotations: int, lowered: int = 0) -> Parameters:
    """CKKS for `clients` clients, with products in sequence, also by public numbers, and rotations by 1, 2, 4, ...

    `lowered`: further primes, each for lowering a scale.

    Raises:
        ConfigError: they do not fit the largest parameters.
    """
    count = _CKKS_WHOLE + 2 * products + lowered
    for degree, most in MOST_BITS.items():
        if CKKS_PRIME * count + CKKS_PRIME + 1 <= most:
            primes = (CKKS_PRIME,) * count + (CKKS_PRIME + 1,)
            flood = ceil(log2(_typical(degree) * sqrt(clients)) + log2(degree) + log2(_CKKS_ANSWERS) + STATISTICAL_BITS)
            return Parameters("ckks", degree, primes, _CKKS_WHOLE, flood, 0, rotations)
    raise ConfigError(f"{products} products of encrypted reals do not fit the largest parameters there are: use bfv")


def most_of(scheme: str) -> int:
    """Numbers with their noise stay below this in absolute value."""
    return LARGEST if scheme == "bfv" else CKKS_LARGEST


def most_answers(parameters: Parameters) -> int:
    """Ciphertexts that the flood was sized for: a key holder refuses the next one."""
    return MOST_ANSWERS if parameters.scheme == "bfv" else _CKKS_ANSWERS


def ckks_scale(parameters: Parameters) -> float:
    """S of fresh ciphertexts."""
    return 2.0 ** (2 * CKKS_PRIME)


def ckks_noise(parameters: Parameters) -> float:
    """What v is at most when a marginal is opened, but for a probability of 2^-40 or so."""
    return _typical(parameters.degree)


def _typical(degree: int) -> float:
    """Eight standard deviations of a fresh v, times 2 for rescaling."""
    return 2.0 * 8.0 * 3.2 * sqrt(4.0 * degree / 3.0)


def rescaling_noise(parameters: Parameters) -> float:
    """Eight standard deviations of what one rescaling adds to v: both parts are rounded, the second one times s."""
    return 8.0 * sqrt(parameters.degree / 18.0)


def ckks_error(parameters: Parameters) -> float:
    """What an opened real is off by, but for a probability of 2^-40 or so: the flood's, seen in a slot.

    A slot is a sum of n coefficients times roots of unity: standard deviation F sqrt(n/3), here eight of them.
    """
    return 8.0 * 2.0**parameters.flood_bits * sqrt(parameters.degree / 3.0) / ckks_scale(parameters)
