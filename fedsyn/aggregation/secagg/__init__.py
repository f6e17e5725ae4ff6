"""The secure sum's cryptographic core: exact sums of vectors in Z_2^64 that reveal nothing but the sum.

Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning"; `graph: full`) and Bell
et al. 2020 ("Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", semi-honest protocol; `graph:
sparse`). Pure: no transport, no Flower. `SecureSumServer` and `SecureSumClient` exchange lists of NumPy arrays, one
round trip per stage:

| stage  | the client receives                     | the client sends                                              |
|--------|-----------------------------------------|---------------------------------------------------------------|
| keys   | nothing                                 | two X25519 public keys (masks; sealed shares) [+ signature]   |
| shares | who sent keys, its neighbours' keys     | per neighbour, sealed: a Shamir share of the seed of its self |
|        | [all keys with their signatures]        | mask and one of its mask key; a commitment to the seed        |
| masked | who sent shares, the shares sealed for  | its vector + self mask + masks with the later neighbours      |
|        | it                                      | - masks with the earlier ones                                 |
| agree  | [who sent a masked vector]              | [signature on that set]                                       |
| unmask | who sent a masked vector [all           | per neighbour the seed's share if it is one of them, else the |
|        | signatures on that set]                 | mask key's share; its own seed                                |

[...] with `threat: malicious` only. The masks of a pair cancel in the sum. A client that vanishes before `shares`
never entered a mask; one that vanishes before `masked` left its masks in the vectors of its neighbours, so its mask
key is put together; of all others the self mask's seed is put together, whether or not they are still there. A client
may vanish at every stage; with fewer than `Session.fewest` left the sum ends and nothing is opened.

**What each party sees.** The server: all public keys and commitments, sealed shares (noise to it), masked vectors (each
uniform in the ring on its own), then the seeds of the contributors and the mask keys of the others, the sum over the
contributors, and who took part in which stage. A client: its neighbours' public keys, the shares sealed for it, which
clients took part; nobody's vector, and not the sum.

**Why that is enough.** An honest contributor's seed is opened, its mask key is not: honest clients reveal one share of
either kind per peer, and t shares are needed of which fewer than t sit with corrupted clients (graph, 1). So the masks
between honest contributors stay pseudo-random to server and corrupted clients together (decisional Diffie-Hellman in
X25519, HKDF and ChaCha20 as pseudo-random functions), and as the honest contributors are connected (graph, 2) the
masked vectors without their self masks are uniform among all vectors with the same sum. For a client that is declared
dropped although its vector arrives later it is the other way round: its masks are known, its seed never is. A
contributor sends its own seed besides the shares: the server is entitled to it then, and spares the interpolation.

**A malicious server** (confidentiality only: it can still end the sum or announce a wrong one) must not lie about keys
or survivors. Keys are signed by identities that the clients pinned. Shares are released only against `fewest`
signatures on one set of survivors and one list of keys, and 2 * fewest > n + corrupted: two sets with so many
signatures would have an honest client that signed both, and a client signs once. So all honest clients reveal the same
kind of share. Each stage is answered once; a client whose state says that it has answered refuses.
The honest contributors stay connected: (a) honest signers have the same list of keys, in which each found its own of
this very sum, and each checked that all contributors are among those that it masks for; so they are all joined to each
other. (b) A contributor that was not asked to sign has opened shares sealed for its fresh key by at least `fewest` - 1
others, so these are no replays of an older sum's keys; more than `corrupted` of them and itself signed, it did not, so
one is an honest signer. Its mask for that signer is unknown to everybody else, and cancels in the total only.

**Not covered.** Wrong inputs: a corrupted client can add what it likes to the sum. Denial of service by the server or
by clients that send well-formed nonsense (shares that nobody can open cost the sum if their owner then drops out). A
client whose state is rolled back or lost between stages. Parameters that the client let the server choose (see
`Session`). What the sum itself reveals: that is the noise's task. Who takes part, and timing. `malicious` with
`sparse` (refused). The failure probability is that of one sum; over many sums it adds up. Python does not wipe
secrets from memory."""

from fedsyn.aggregation.secagg.client import SecureSumClient
from fedsyn.aggregation.secagg.primitives import Identity, Roster
from fedsyn.aggregation.secagg.server import SecureSumServer
from fedsyn.aggregation.secagg.session import SecureSumAborted, Session

__all__ = ["Identity", "Roster", "SecureSumAborted", "SecureSumClient", "SecureSumServer", "Session"]
