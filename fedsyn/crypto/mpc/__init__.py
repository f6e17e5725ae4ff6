"""Exact computation on secrets of Z_2^64 among three parties.

It is safe as long as at most one of them is corrupted.

Replicated secret sharing after Araki, Furukawa, Lindell, Nof and Ohara, "High-throughput semi-honest secure three-party
computation with an honest majority" (CCS 2016): x = x_0 + x_1 + x_2 mod 2^64, party i holds the slots i and i + 1.
Pure: knows no messages, no mechanism, no Flower. Every party runs the same program, in a thread or in a process:

    session = Session(index, (key of slot index, key of slot index + 1), network, malicious=True)
    table = received(index, seeds, correction, length)            # what a client dealt
    sums = session.l1(table, starts, bits=28)
    best = session.argmax(sums, bits=40)                          # the only thing that is opened

| operation | rounds | bytes that one party sends |
|---|---|---|
| linear functions, public constants, slices, marginals (`Shared`) | 0 | 0 |
| `input`, `sum_of_inputs`, `multiply` | 1 | 8 per element (`input`: the owner alone) |
| `sum_of_bounded_inputs` | 4 | 25 per bit of an element |
| `inner`, `squared` | 1 | 8 per segment; malicious: per element |
| `and_planes` | 1 | 8 per word of 64 gates |
| `negative` | 2 + ceil(log2(bits - 2)) | below bits / 2 per value |
| `l1` | `negative` + 3 | `negative` + 32 and 2 bits per element + an `inner` of thrice as many |
| `argmax` of one level (to 512 values) | `negative` + ceil(log2(m - 1)) + 2 | `negative` of all pairs + m^2 / 8 |
| `open` | 2 | 8 per element + 36 |
| `shares_for_server` | 0 | 8 per element + 32, to the server |
| malicious: `verify`, called by the last two | 8 and 2 per 262,144 triples more | 48 to 72 per product and per word |

**Semi-honest** (`malicious=False`). One party that follows the protocol learns what is opened and nothing else: what it
receives is masked with the stream of the one key that it does not hold, each word of a stream used once (`Session`).
Keys must be fresh for each session. Results are exact and do not depend on keys. Two parties together know everything.

**Malicious** (`malicious=True`). One party that deviates in any way, with clients and the server on its side, learns
what an honest computation opens on inputs that are legal, or nothing: before an opening all products before it are
checked, and a wrong one is missed with probability 2^-40 (`fedsyn.crypto.mpc.checking` has the method, its source and
the bound). After an abort the session is over at every party. Whoever starts again gives a liar another 2^-40.

| what the corrupted party does | what comes of it |
|---|---|
| a wrong message in a product or an AND, anywhere, or wrong factors | a wrong product: caught by `verify`, both stop |
| a wrong triple, coin, copy or digest in `verify` | caught there, both honest parties stop |
| another share of an opened value, to a party | caught: of the two copies one comes from an honest party |
| another share of a value to the server | caught by `reconstruct` |
| a message of another length, none, or "stop" | both stop, at once or after the network's timeout |
| the last word of an opening, to one party alone | that one stops, the other one has the value, and it is right |
| any message that *is* an input (`input`, `sum_of_inputs`) | not caught: it is an input, of another value |
| bad keys: constant, known to the server, told wrongly to the party before | see below |
| wrong inputs of a client | not caught; in `l1` each counts for 2^(bits-1) at most |
| sums out of the stated bounds | not caught |

*Inputs.* The honest parties' slots define a value whatever the message says, chosen without knowing other secrets. A
party that could be held to its input would have to prove how it drew it. Noise of a corrupted party is worth nothing
anyway: there must be enough without it, and then a constant on top spoils results, not privacy. **But a constant that
takes an argmax out of its bits is no constant: comparisons wrap. Noise that goes into an argmax must come by
`sum_of_bounded_inputs`,** with `bits` of the argmax wide enough for all bounds together.

*Keys.* A party knows the keys of two slots, with one other party each, and draws one of them. It can tell both to
anybody (who then knows what it knows), draw badly (its own masks suffer), or tell the party before another key than
it uses (then it sends wrong messages, as above). All masks, triples and coins that are to be secret from it contain
the third stream, whose key two honest parties drew and told each other.

*What comes in* must be the same at both holders of each slot: parties compare digests of what clients deal
(`fedsyn.stores.parties.party.Deals`). Copies of an honest client's slots need no comparison.

**Not covered.** What the opened values say by themselves. Lengths, bounds and the program are public. A party can
always end the computation. Python wipes no secrets.
"""
