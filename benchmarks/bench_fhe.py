"""FHAIM's steps, and sums of ciphertexts beside secure sums, each pair in the same run.

    python benchmarks/bench_fhe.py                       # the steps on a made-up table, and a sum over 1,000 clients
    python benchmarks/bench_fhe.py --source compas       # the steps on a registered table
    python benchmarks/bench_fhe.py --clients 5000 --steps 0
    python benchmarks/bench_fhe.py --libraries 1 --steps 0 --clients ''   # the libraries that are installed

*Steps*: COMPUTE from encrypted columns, packed against FHAIM's Protocols 1 and 4 as printed, the results compared cell
by cell; a choice and an opening. *Sums*: `sketch_aim` over `fhe` against `secagg` and `plain`,
with equal tables (checked). *Libraries*: a product of two encrypted columns of 4,120 people.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fhaim_table4.naive import compute, facts_of, table_of
from fedsyn.crypto.fhe.bfv import BfvComputation, BfvReader
from fedsyn.crypto.fhe.parameters import bfv_for_store
from fedsyn.crypto.fhe.seal import Encryptor, SecretKeys
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout
from fedsyn.domain import Domain
from fedsyn.flower import Message
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.runs import engines
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.table.counting.marginals import count


def timed(step: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = step()
    return result, time.perf_counter() - start


# Steps ---------------------------------------------------------------------------------------------------------------


def rounds(codes: np.ndarray, domain: Domain) -> tuple[float, float, float]:
    """Seconds of a client's encryption, of a choice and of an opening, server and crypto party together."""
    facts, parameters = facts_of(domain), bfv_for_store(1)
    keys = SecretKeys(parameters)
    computation, reader = BfvComputation(parameters, keys.public), BfvReader(keys)
    layout = SlotLayout(facts.cliques, domain, parameters.slots)
    encryptor = Encryptor(parameters, keys.public.public)
    cells = dict(zip(facts.cliques, (c.ravel() for c in count(codes, domain, facts.cliques)), strict=True))
    ranges = NoiseRanges(layout, facts.openings, facts.cliques[: len(domain)])

    def encrypted() -> list[bytes]:
        noise = np.zeros((ranges.planes, min(layout.slots, layout.copies * layout.length)), np.int64)
        vectors = [layout.vector(cells), *noise]
        return [piece for vector in vectors for piece in encryptor.to_bytes(vector)]

    raw, dealing = timed(encrypted)
    read = computation.read(raw)
    stored, planes = read[: layout.ciphertexts], read[layout.ciphertexts :]
    flat = [np.full(domain.size(clique), 1.0 / domain.size(clique)) for clique in facts.cliques]
    weights = np.array([float(len(clique)) for clique in facts.cliques])
    sizes = np.array([float(len(p)) for p in flat])
    terms = ChoiceTerms.of(
        "squared_l2", facts.cliques, flat, weights, sizes, sigma=20.0, size=float(len(codes)), rows=len(codes)
    )
    nothing = np.zeros(len(facts.cliques), np.int64)
    choices = [
        timed(lambda: reader.scores(computation.scores(stored, layout, terms, nothing), terms))[1] for _ in range(5)
    ]

    def opened() -> Any:
        pieces = ranges.reserve([facts.cliques[-1]])
        return reader.numbers(computation.marginals(stored, planes, 1000, pieces))

    openings = [timed(opened)[1] for _ in range(5)]
    return dealing, statistics.median(choices), statistics.median(openings)


def steps(source: str) -> None:
    codes, domain = table_of(source)
    facts = facts_of(domain)
    cells = sum(domain.size(clique) for clique in facts.cliques)
    print(f"{source}: {len(codes)} rows, {len(domain)} attributes, {cells} cells of {len(facts.cliques)} cliques")
    exact = np.concatenate([c.ravel() for c in count(codes, domain, facts.cliques)])
    packed, found, products = compute(codes, domain, packed=True)
    assert np.array_equal(found, exact)
    print(f"  COMPUTE packed   {packed:8.2f} s  ({products} products)")
    naive, found, products = compute(codes, domain, packed=False)
    assert np.array_equal(found, exact)
    print(f"  COMPUTE naive    {naive:8.2f} s  ({products} products): packed is {naive / packed:.1f} times faster")
    dealing, choice, opening = rounds(codes, domain)
    print(f"  client {dealing:6.3f} s  choice {choice:6.3f} s  opening {opening:6.3f} s")


# Sums ----------------------------------------------------------------------------------------------------------------


class Counting(InProcessGrid):
    """Counts the messages."""

    messages = 0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting = list(messages)
        Counting.messages += len(waiting)
        return super().send_and_receive(waiting, timeout=timeout)


def sums(clients: int, width: int) -> None:
    """Whole runs of `sketch_aim` over made-up clients: everything that clients, server and crypto party do."""
    document = {
        "mechanism": {"name": "sketch_aim", "rounds": 2, "width": width},
        "data": {"source": "synthfs", "bins": 8, "options": {"beta": 1.0, "clients": clients, "rows": 10 * clients}},
        "federation": {"clients": clients, "partition": "native"},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "client_sizes": "public"},
        "workload": {"degree": 2},
        "evaluation": [],
        "runtime": {"seed": 0},
    }
    engines.InProcessGrid = Counting  # type: ignore[misc]
    tables, seconds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for protocol in ("plain", "secagg", "fhe"):
            node = {"protocol": protocol, "noise": "distributed"}
            config = parse_config({**document, "aggregation": node})
            Counting.messages, start = 0, time.process_time()
            metrics = engines.run(config, Path(folder) / protocol)
            seconds[protocol] = time.process_time() - start
            tables[protocol] = (Path(folder) / protocol / "synthetic.csv").read_bytes()
            assert tables[protocol] == tables["plain"]
            sent = (
                f"{Counting.messages / clients - 1:.1f} messages, {1000 * metrics['client_mb_up']:.1f} kB of a client"
            )
            print(f"  {protocol:6s} {seconds[protocol]:8.1f} CPU s, {sent}, peak {metrics['peak_mb']:,.0f} MB so far")
    print(f"  fhe takes {seconds['fhe'] / seconds['secagg']:.2f} of secagg's processor time; the tables are equal")


# Libraries -----------------------------------------------------------------------------------------------------------


def libraries() -> None:
    """BFV's product of two columns of 4,120 people, relinearised and decrypted: TenSEAL, and seal-python beside it."""
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 2, (2, 4120))
    for name, run in (("tenseal", _tenseal), ("seal", _seal_python)):
        try:
            found, times = run(one, two)
        except ImportError:
            print(f"  {name}: not installed")
            continue
        assert np.array_equal(found[:4120], one * two)
        print(f"  {name:8s}" + "  ".join(f"{step} {1000 * t:6.2f} ms" for step, t in times.items()))


def _tenseal(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    import tenseal.sealapi as api

    chosen = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
    chosen.set_poly_modulus_degree(8192)
    chosen.set_coeff_modulus(api.CoeffModulus.BFVDefault(8192, api.SEC_LEVEL_TYPE.TC128))
    chosen.set_plain_modulus(api.PlainModulus.Batching(8192, 20))
    context = api.SEALContext(chosen, True, api.SEC_LEVEL_TYPE.TC128)
    encoder, evaluator = api.BatchEncoder(context), api.Evaluator(context)
    keys, public, again = api.KeyGenerator(context), api.PublicKey(), api.RelinKeys()
    keys.create_public_key(public)
    keys.create_relin_keys(again)
    encryptor, decryptor = api.Encryptor(context, public), api.Decryptor(context, keys.secret_key())

    def encrypted(values: np.ndarray) -> Any:
        plain, made = api.Plaintext(), api.Ciphertext()
        encoder.encode(values.tolist(), plain)
        encryptor.encrypt(plain, made)
        return made

    def product(a: Any, b: Any) -> Any:
        made = api.Ciphertext()
        evaluator.multiply(a, b, made)
        evaluator.relinearize_inplace(made, again)
        return made

    def decrypted(a: Any) -> np.ndarray:
        plain = api.Plaintext()
        decryptor.decrypt(a, plain)
        return np.array(encoder.decode_int64(plain))

    return _median(one, two, encrypted, product, decrypted)


def _seal_python(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    import seal as api

    chosen = api.EncryptionParameters(api.scheme_type.bfv)
    chosen.set_poly_modulus_degree(8192)
    chosen.set_coeff_modulus(api.CoeffModulus.BFVDefault(8192))
    chosen.set_plain_modulus(api.PlainModulus.Batching(8192, 20))
    context = api.SEALContext(chosen)
    encoder, evaluator, keys = api.BatchEncoder(context), api.Evaluator(context), api.KeyGenerator(context)
    again = keys.create_relin_keys()
    encryptor, decryptor = api.Encryptor(context, keys.create_public_key()), api.Decryptor(context, keys.secret_key())

    def product(a: Any, b: Any) -> Any:
        made = evaluator.multiply(a, b)
        evaluator.relinearize_inplace(made, again)
        return made

    return _median(
        one,
        two,
        lambda values: encryptor.encrypt(encoder.encode(values)),
        product,
        lambda a: np.array(encoder.decode(decryptor.decrypt(a))),
    )


def _median(
    one: np.ndarray, two: np.ndarray, encrypted: Any, product: Any, decrypted: Any
) -> tuple[np.ndarray, dict[str, float]]:
    times: dict[str, list[float]] = {"encryption": [], "product": [], "decryption": []}
    for _ in range(23):
        a, first = timed(partial(encrypted, one))
        b, _ = timed(partial(encrypted, two))
        c, second = timed(partial(product, a, b))
        found, third = timed(partial(decrypted, c))
        for step, seconds in zip(times, (first, second, third), strict=True):
            times[step].append(seconds)
    return found, {step: statistics.median(seconds[3:]) for step, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="made-up", help="a registered table, or 'made-up'")
    parser.add_argument("--steps", type=int, default=1, help="0: leave the steps out")
    parser.add_argument("--clients", default="1000", help="of the sums, separated by commas; empty: leave them out")
    parser.add_argument("--width", type=int, default=36, help="of the sums' sketches: what makes a vector long")
    parser.add_argument("--libraries", type=int, default=0, help="1: compare the libraries that are installed")
    args = parser.parse_args()
    if args.steps:
        steps(args.source)
    for clients in filter(None, args.clients.split(",")):
        print(f"sketch_aim over {clients} clients")
        sums(int(clients), args.width)
    if args.libraries:
        print("a product of two encrypted columns of 4,120 people")
        libraries()


if __name__ == "__main__":
    main()
