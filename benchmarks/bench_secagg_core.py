"""What masking costs: the secure sum's cryptographic core, all parties in one process, beside the bare sum.

CPU seconds of one sum over all clients and the server together, without transport; every client is restored from its
JSON state between stages, as in a deployment. 5% of the clients may collude, 10% may drop out and do: half of them
before they send their masked vector (their mask keys are put together), half after it (their seeds are).

    python benchmarks/bench_secagg_core.py                      # 100 clients, 10,000 entries
    python benchmarks/bench_secagg_core.py --clients 1000 --length 1000 --graphs sparse
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from fedsyn.aggregation.secagg import Identity, SecureSumClient, SecureSumServer, Session


def measure(session: Session, vectors: np.ndarray) -> tuple[dict[str, float], float, float]:
    """CPU seconds by stage, KB that one client sends and receives."""
    clients = session.clients
    malicious = session.threat == "malicious"
    identities = {c: Identity.derived(b"%d" % c) for c in clients} if malicious else {}
    roster = {c: identity.public for c, identity in identities.items()} or None
    half = session.dropouts // 2
    gone = {"masked": set(clients[:half]), "unmask": set(clients[half : session.dropouts])}
    server, states = SecureSumServer(session, roster), {}
    seconds: dict[str, float] = {}
    up = down = 0
    while not server.done:
        start = time.process_time()
        stage, common, each = server.outbox()
        replies = {}
        for c, own in each.items():
            if c in gone.get(stage, ()):
                continue
            state = json.loads(states[c]) if c in states else None
            client = SecureSumClient(session, c, identity=identities.get(c), roster=roster, state=state)
            replies[c] = client.answer(stage, common + own, lambda c=c: vectors[c])
            states[c] = json.dumps(client.to_state())
            down += sum(array.nbytes for array in common + own)
            up += sum(array.nbytes for array in replies[c])
        server.receive(replies, lambda c, reason: None)
        seconds[stage] = time.process_time() - start
    total, contributors = server.result()
    assert np.array_equal(total, vectors[list(contributors)].sum(axis=0, dtype=np.uint64))
    return seconds, up / len(clients) / 1e3, down / len(clients) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--length", type=int, default=10_000)
    parser.add_argument("--graphs", nargs="+", default=["sparse", "full", "malicious"])
    arguments = parser.parse_args()
    n, length = arguments.clients, arguments.length
    vectors = np.random.default_rng(0).integers(0, 2**64, (n, length), dtype=np.uint64)
    start = time.process_time()
    vectors.sum(axis=0, dtype=np.uint64)
    bare = time.process_time() - start
    print(f"{n} clients, {length} entries; CPU seconds of all parties together")
    print(f"{'no masks':>10}: {bare:7.3f} s, {length * 8 / 1e3:8.1f} KB up")
    for kind in arguments.graphs:
        threat, graph = ("malicious", "full") if kind == "malicious" else ("semi_honest", kind)
        session = Session(b"benchmark", tuple(range(n)), length, n // 10, n // 20, threat, graph)
        seconds, up, down = measure(session, vectors)
        parts = ", ".join(f"{stage} {value:.3f}" for stage, value in seconds.items())
        print(
            f"{kind:>10}: {sum(seconds.values()):7.3f} s, {up:8.1f} KB up, {down:8.1f} KB down, "
            f"{session.degree} neighbours, {session.threshold} shares ({parts})"
        )


if __name__ == "__main__":
    main()
