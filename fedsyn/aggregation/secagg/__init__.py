"""Secure sums with one setup per run.

A client sends one message for each sum, and a committee member one more.

Pure cryptography: no transport, no Flower. After the model of Flamingo (Ma, Woods, Angel, Polychroniadou, Rabin
2023): keys are agreed once, and a small random committee opens every sum, whoever drops out. What differs: there are
no masks between pairs of clients. Each client masks its vector with one **layer** per committee member, and a member
sends the sum of its layer over the contributors. So nothing about a single client is ever opened, and a lie about who
contributed opens nothing.

| stage   | asked               | receives                              | sends                                        |
|---------|---------------------|---------------------------------------|----------------------------------------------|
| enrol   | all clients, once   | who is invited                        | an X25519 public key [signed]                |
| deal    | the committee, once | who is enrolled, all public keys      | a public key per epoch [signed]; for each    |
|         |                     | [signatures]                          | other member, sealed: a share of each secret |
| masked  | the cohort          | the members' public keys of the epoch | its vector + one mask per member; a nonce    |
|         |                     | [signatures]                          |                                              |
| unmask  | the committee       | who contributed, their nonces; which  | the sum of its masks over the contributors;  |
|         |                     | members are gone, their sealed shares | its shares of the keys of those              |
| recover | members that are    | which others did not answer `unmask`  | its shares of their keys                     |
|         | there, if needed    |                                       |                                              |

[...] with `threat: malicious` only. A client that vanishes costs nothing: it is not among the contributors. For a
member that vanishes, `threshold` others give shares of its secret key OF THIS EPOCH, and the server computes its
masks. A setup deals keys for 16 epochs. A new one begins after each sum in which a key was revealed; when all
are used up, a new setup draws a new committee. `size` derives how many members there are and how many keys of an epoch
may be revealed.

The mask of client i under the layer of member j in one sum is the ChaCha20 stream of HMAC(k_ij, facts of the sum,
nonce of i), with k_ij the HKDF of the X25519 agreement of i's key and j's key of the epoch.

**What each party sees.** The server: public keys, sealed shares (noise to it), masked vectors (each uniform in the
ring), the sum of each member's masks, the keys of members that are gone, and from these the total over the
contributors. A member: public keys, who contributed, their nonces, shares of other members' keys. A client: the
members' public keys. No client sees a vector, a total or who contributed, unless it is a member.

**Why that is enough.** Let j be an honest member whose key of the epoch is not revealed (`size`: there is one). For
honest clients i the masks of layer j are pseudo-random to everybody else (decisional Diffie-Hellman in X25519; HKDF,
HMAC and ChaCha20 as pseudo-random functions) and independent of all other layers. What is known of them is the one
sum over the contributors that j answered for this sum: j answers each sum once. So of the honest contributors'
vectors only their sum can be computed. Where several such members were told different sets of contributors, a
combination of the vectors could be freed of the masks only if every one of these sums freed it; different sets leave
none. So no agreement on the set is needed: whatever a server tells whom, it learns the total over ONE set, which
every honest member with an unrevealed key has found to hold `fewest` enrolled clients of the cohort, or nothing.

**A malicious server** (confidentiality only: it can end a sum or announce a wrong one). All keys are signed by
identities that everybody pinned, and contributors are real clients, at most `corrupted` of those invited its friends.
Names and numbers are the server's to repeat, so nothing rests on them: members sign their keys of an epoch, and seal
shares of them, for the **transcript**, the hash of all enrolled clients' fresh keys. A client masks only if ALL
members signed for ONE transcript, so each of them counts what it reveals in the one memory that holds its key of that
transcript. A member recomputes the transcript from the keys that it was dealt with, whatever a later message says of
who is enrolled. The server may tell members different stories about who is gone: `size`, Malicious. It may ask a
client twice: it answers each sum once, and should its memory be rolled back, with another nonce, so the two answers
have unrelated masks.

**Not covered.** Members whose memory is rolled back: they forget what they revealed and answered. With r of the h
honest ones, all keys of an epoch can be had once r (h - 1) + (h - r) lost >= h (h - lost): three at the default
shares. Wrong inputs and wrong masks: a corrupted client can add what it likes to a total, a corrupted member can
spoil it. Denial of service. Clients corrupted because of their seat: a set of corrupted clients is fixed before the
draw. Parameters that a client let the server choose (see `Setup`). What the sum itself reveals: that is the noise's
task. Who takes part, and timing. A client's key of the setup serves all its sums: who steals it and records all
messages can take its masks off. Python does not wipe secrets from memory.
"""
