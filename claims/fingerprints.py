"""Miniatures of what the published figures measure: seeded, seconds long, each a few numbers that machines agree on.

    python -m claims.fingerprints NAME      # prints one as JSON

A miniature of quality runs a mechanism whole on generated rows. Its facts are errors to five digits and hashes of the
cliques that were chosen and of the rows that were sampled; nothing of it depends on the last bits of a sum. One of cost
counts: calls of this project's own functions, messages, bytes, products. Nothing of it is a time. Calls and bytes are
the same within a tenth (`same`), so that a helper more moves no figure; everything else must be equal.

Calls are those of named functions below fedsyn, strategies, clients and partitioners: Python versions inline
comprehensions differently, and what NumPy calls inside is its own affair.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

Facts = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(str(ROOT / folder) + os.sep for folder in ("fedsyn", "strategies", "clients", "partitioners"))
FINGERPRINTS: dict[str, Callable[[], Facts]] = {}
_PLAIN = {"protocol": "plain", "noise": "distributed"}


def fingerprint(made: Callable[[], Facts]) -> Callable[[], Facts]:
    """Registers a miniature under its name."""
    FINGERPRINTS[made.__name__] = made
    return made


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two results say the same: calls and bytes within a tenth, everything else equal."""

    def near(key: str) -> bool:
        a, b = one[key], other[key]
        counted = key.startswith(("calls", "bytes")) and all(isinstance(value, int | float) for value in (a, b))
        return abs(a - b) <= 0.1 * max(a, b) if counted else a == b

    return one.keys() == other.keys() and all(map(near, one))


def digest(content: bytes | str) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(raw).hexdigest()[:8]


@contextmanager
def counting(*named: str) -> Iterator[Counter[str]]:
    """Calls of our own functions: all of them under `calls`, and those whose qualified name is given."""
    found: Counter[str] = Counter()
    ours: dict[Any, str | None] = {}

    def seen(frame: Any, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in ours:
            of_us = code.co_filename.startswith(OURS) and not code.co_name.startswith("<")
            ours[code] = code.co_qualname if of_us else None
        name = ours[code]
        if name is not None:
            found["calls"] += 1
            if name in named:
                found[f"calls of {name}"] += 1

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        for name in named:
            found.setdefault(f"calls of {name}", 0)


def document(mechanism: str, clients: int = 6, **nodes: Any) -> dict[str, Any]:
    """A configuration of 600 generated rows of 5 columns; `nodes` are merged into it, `options` too."""
    made: dict[str, Any] = {
        "mechanism": {"name": mechanism, **nodes.pop("options", {})},
        "data": {
            "source": "synthfs",
            "options": {"rows": 600, "features": 5, "clients": clients},
            "test_fraction": 0.1,
        },
        "federation": {"clients": clients, "partition": "native"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2, "size": None},
        "aggregation": _PLAIN,
        "evaluation": ["workload_error", "nll"],
        "runtime": {"seed": 0},
    }
    for key, node in nodes.items():
        both = isinstance(node, dict) and isinstance(made.get(key, {}), dict)
        made[key] = {**made.get(key, {}), **node} if both else node
    return made


@contextmanager
def ran(mechanism: str, **nodes: Any) -> Iterator[tuple[dict[str, Any], Path]]:
    """The metrics of a run, and its folder."""
    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        yield run(parse_config(document(mechanism, **nodes)), out, full_page=False), out


def quality(mechanism: str, **nodes: Any) -> str:
    """What a run measured and left, in a line."""
    from fedsyn.table.data.readers import encode_file
    from fedsyn.table.schema import Schema

    with ran(mechanism, **nodes) as (metrics, out):
        rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text("utf-8").splitlines()]
        chosen = digest(json.dumps([each["selected"] for each in rounds]))
        # The figures are of bins; where in its bin a value lies is none of theirs.
        rows = digest(encode_file(out / "synthetic.csv", Schema.load(out / "schema.yaml")).tobytes())
    left_out = ("seconds", "peak_mb", "client_mb", "dropped")
    figures = " ".join(f"{key} {value:.5g}" for key, value in metrics.items() if not key.startswith(left_out))
    return f"{figures}, chosen {chosen}, rows {rows}"


def cost(mechanism: str, *named: str, **nodes: Any) -> Facts:
    """Calls of a run, and the bytes of an average client."""
    with counting(*named) as calls, ran(mechanism, **{"evaluation": [], **nodes}) as (metrics, _):
        pass
    sizes = {f"bytes {way}": round(metrics[f"client_mb_{way}"] * 1e6) for way in ("up", "down")}
    return {**calls, **sizes}


# Quality --------------------------------------------------------------------------------------------------------------


@fingerprint
def sketch_aim() -> Facts:
    """Pairs and triples, a trusted server and shares of noise, with and without the three options of its fits."""
    plain = {"inference": {"shrinkage": 0.0, "smoothing": False, "stop_at_noise_level": False}}
    return {
        "pairs": quality("sketch_aim"),
        "triples": quality("sketch_aim", workload={"degree": 3, "size": 8, "seed": 0}),
        "one holder": quality("sketch_aim", clients=1, aggregation={"protocol": "plain", "noise": "local"}),
        "fits": quality("sketch_aim", **plain),
    }


@fingerprint
def cohorts() -> Facts:
    """Clients that take part in one or two of the rounds."""
    some = {"sampling_rate": 0.25, "max_participations": 1}
    names = ("sketch_aim", "augflaim", "naive_flaim", "flaim_random", "fed_naive_bayes", "distributed_aim", "distaim")
    fewer = {name: quality(name, clients=8, federation=some, options={"rounds": 4}) for name in names}
    return {**fewer, "sampled": quality("sketch_aim", clients=8, federation={"sampling_rate": 0.5})}


@fingerprint
def client_unit() -> Facts:
    """All rows of a client as the unit: few of them, and many."""

    def capped(cap: int) -> str:
        privacy = {"unit": "client", "rows_per_client": cap, "client_sizes": "private", "epsilon": 50.0}
        federation = {"partition": {"name": "quantity", "alpha": 3.0, "min_rows": 5}}
        return quality("sketch_aim", clients=30, privacy=privacy, federation=federation)

    return {"one": capped(1), "ten": capped(10)}


@fingerprint
def aim() -> Facts:
    """The algorithm of stores: as published, annealed, with its other scores, and in shares of three parties."""
    one = {"clients": 1, "aggregation": {"protocol": "plain", "noise": "server"}}
    return {
        "aim": quality("aim", **one),
        "annealed": quality("aim", options={"rounds": None}, **one),
        "effective": quality("aim", options={"penalty": "effective"}, **one),
        "distaim": quality("distaim", options={"rounds": 4}),
        "squared": quality("fhaim", privacy={"epsilon": 1.0}),
    }


@fingerprint
def flaim() -> Facts:
    """The five variants of FLAIM, and what its experiments vary."""
    names = ("augflaim", "naive_flaim", "augflaim_oracle", "flaim_random", "fed_naive_bayes")
    return {
        **{name: quality(name, options={"rounds": 4}, federation={"sampling_rate": 0.5}) for name in names},
        "annealed": quality("augflaim", options={"rounds": None}),
        "local rounds": quality("augflaim", options={"rounds": 4, "local_rounds": 3}),
        "own sizes": quality("augflaim", options={"rounds": 4}, privacy={"client_sizes": "private"}),
        "own noise": quality("augflaim", options={"rounds": 4}, aggregation={"protocol": "plain", "noise": "local"}),
    }


@fingerprint
def distributed_aim() -> Facts:
    """The defaults, and the start without one-way marginals as the paper prints it."""
    return {"defaults": quality("distributed_aim"), "top": quality("distributed_aim", options={"top": 1})}


@fingerprint
def each_alone() -> Facts:
    """Tables of three holders' own rows, put together."""
    local = {"protocol": "plain", "noise": "local"}
    return {"alone": quality("each_alone", clients=3, aggregation=local, evaluation=["workload_error"])}


@fingerprint
def persons() -> Facts:
    """Whole persons of one record each, with rows in order and persons without rows."""
    import numpy as np

    from experiments.persons.run import by_records, errors
    from experiments.persons.tables import hospital

    table = hospital(0)
    few = set(table.persons["id"].iloc[:1500])
    table = table._replace(persons=table.persons.iloc[:1500], rows=table.rows[table.rows["id"].isin(few)])
    made = by_records(table, 0, epsilon=3.0, clients=3)
    return {
        "errors": " ".join(f"{error:.5f}" for error in errors(table, made)),
        "rows": digest(made.rows.to_csv(index=False)),
        "persons": digest(made.persons.to_csv(index=False)),
        "most": int(np.bincount(made.rows["id"].to_numpy(np.int64)).max()),
    }


@fingerprint
def visits() -> Facts:
    """Rows in the order of a date, as far apart as their gaps say, free to overlap and not."""
    import fedsyn
    from experiments.persons import overlap

    real, facts = overlap.visits(600, 1).drop(columns="nights"), Facts()
    for name, rules in (("free", ()), ("apart", (overlap.OVERLAP,))):
        stated, privacy = overlap.schema(*rules, summed=False), {"unit": "person"}
        made = fedsyn.Synthesizer(3.0, 1e-6, stated, seed=1, privacy=privacy, progress=False).fit(real).sample()
        off = overlap.Seen.of(real).off(overlap.Seen.of(made))
        facts |= {f"errors, {name}": " ".join(f"{error:.5f}" for error in off)}
        facts |= {f"rows, {name}": digest(made.to_csv(index=False))}
    return facts


@fingerprint
def mst() -> Facts:
    """One tree of pairs, central and federated."""
    return {"mst": quality("mst", clients=1), "fed_mst": quality("fed_mst")}


@fingerprint
def privsyn() -> Facts:
    """PrivSyn and its federated forms, judged by range queries and distances as well."""
    judged = {"evaluation": ["workload_error", "range_query_error", "experiments.paper_metrics:wasserstein"]}
    return {
        "privsyn": quality("privsyn", clients=1, **judged),
        "fed_privsyn": quality("fed_privsyn", **judged),
        "ada_fed_privsyn": quality("ada_fed_privsyn", **judged),
    }


@fingerprint
def ctgan() -> Facts:
    """Three rounds of DP-FedSGD; its networks' floats to two digits."""
    with ran("fed_dp_ctgan", clients=2, options={"rounds": 3}) as (metrics, out):
        spent = json.loads((out / "ledger.json").read_text("utf-8"))
        up = round(metrics["client_mb_up"] * 1e6)
        return {"error": f"{metrics['workload_error']:.2g}", "epsilon": f"{spent['epsilon']:.6g}", "bytes up": up}


@fingerprint
def partitions() -> Facts:
    """How rows are split over clients: even, unequal, skewed by label, clustered."""
    kinds: dict[str, Any] = {
        "iid": "iid",
        "dirichlet": {"name": "dirichlet", "label": "x1"},
        "quantity": {"name": "quantity", "alpha": 3.0},
    }
    judged = ["workload_error", "heterogeneity"]
    return {
        name: quality("fed_naive_bayes", federation={"partition": kind}, evaluation=judged)
        for name, kind in kinds.items()
    }


@fingerprint
def splits() -> Facts:
    """Who holds which row of the experiments' clustered tables, as shipped."""
    import numpy as np

    from experiments.splits import FILE

    with np.load(FILE) as stored:
        return {f"split {name[:8]}": digest(stored[name].tobytes()) for name in sorted(stored)}


@fingerprint
def learners() -> Facts:
    """Classifiers that are trained on synthetic rows and tested on real ones, to two digits."""
    papers = [f"experiments.paper_metrics:{name}" for name in ("f1_rf", "f1_lr")]
    judged = ["auc", "f1", "accuracy", *papers]
    with ran("sketch_aim", evaluation=judged, data={"label": "x1"}) as (metrics, _):
        names = [name.rpartition(":")[2] for name in judged]
        return {name: f"{metrics[name]:.2g}" for name in names}


@fingerprint
def private_bins() -> Facts:
    """Bounds and bins of a skewed column that the holders find together."""
    from benchmarks.bench_private_bins import WAYS, config, costs, described
    from fedsyn.runs.engines import run

    frame, data, name = costs()
    frame = frame.head(2000)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        run(config("sketch_aim", 3, 0), out, table=frame, schema=described(data, name, WAYS[2], frame))
        spent = json.loads((out / "ledger.json").read_text("utf-8"))["releases"]
        return {"schema": digest((out / "schema.yaml").read_text("utf-8")), "releases": len(spent)}


@fingerprint
def intervals() -> Facts:
    """Honest and naive intervals of a regression on eight tables of one run's posterior."""
    import pandas as pd

    import fedsyn

    with ran("sketch_aim", evaluation=[]) as (_, out):
        synthesizer = fedsyn.load(out)
        tables = synthesizer.sample(tables=8, seed=0)
        assert all(isinstance(table, pd.DataFrame) for table in tables)
        names = list(tables[0].columns)
        found = fedsyn.analyse(tables, f"{names[0]} ~ {names[1]}").to_frame()
    numbers = found.select_dtypes("number").round(4).to_csv(index=False)
    return {"intervals": digest(numbers), "rows": digest(tables[0].to_csv(index=False))}


@fingerprint
def predicted() -> Facts:
    """What a run predicts of its own error, with its interval."""

    def said(**nodes: Any) -> str:
        with ran("sketch_aim", **nodes) as (_, out):
            whole = json.loads((out / "predicted_quality.json").read_text("utf-8"))["workload_error"]
        return " ".join(f"{whole[key]:.5g}" for key in ("value", "low", "high"))

    return {"epsilon 3": said(), "epsilon 0.3": said(privacy={"epsilon": 0.3})}


@fingerprint
def verdicts() -> Facts:
    """What a table is said to be fit for: by a run's released values, and beside real rows where links are shrunken."""
    from experiments.verdicts.run import compared
    from fedsyn.evaluation.predicted import PredictedQuality
    from fedsyn.evaluation.verdict import Verdict

    def said(verdict: Verdict) -> str:
        """Without its words, which may be others."""
        return ", ".join(f"{use.name} {use.fit} {use.kept}/{use.of}" for use in verdict.uses())

    with ran("sketch_aim", data={"options": {"rows": 3000, "features": 5, "clients": 6}}) as (_, out):
        public = json.loads((out / "predicted_quality.json").read_text("utf-8"))
    links = [[link["columns"], f"{link['kept']:.2f}"] for link in public["seen"]["links"]]
    return {
        "public": said(PredictedQuality.from_dict(public).verdict()),
        "links": digest(json.dumps(links)),
        "compared": said(compared("survey_1", 960, 0.6).verdict()),
    }


@fingerprint
def drafts() -> Facts:
    """The schemas that a draft proposes for tables as newcomers bring them."""
    from experiments.drafted_bins.run import made
    from fedsyn.table.schema import Schema
    from tests.support import newcomers

    tables = {"export": made("export", 1).iloc[:1_500], "wide": newcomers.wide(), "messy": newcomers.messy()}
    tables |= {"survey": newcomers.survey(), "patients": newcomers.patients(), "visits": newcomers.visits()}
    return {name: digest(Schema.draft(table).dumps()) for name, table in tables.items()}


@fingerprint
def asked_of_holders() -> Facts:
    """Figures that the holders answer with noise, and their intervals."""
    with ran("sketch_aim", evaluation={"federated": True}) as (_, out):
        figures = json.loads((out / "federated_evaluation.json").read_text("utf-8"))["figures"]
    return {"figures": digest(json.dumps(rounded(figures), sort_keys=True)), "named": len(figures)}


def rounded(facts: Any) -> Any:
    """The same with floats to five digits."""
    if isinstance(facts, dict):
        return {key: rounded(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [rounded(value) for value in facts]
    return float(f"{facts:.5g}") if isinstance(facts, float) else facts


# Cost -----------------------------------------------------------------------------------------------------------------


@contextmanager
def weighing() -> Iterator[list[int]]:
    """Of each call of `Planner.offers`, the candidates that it is asked about."""
    from fedsyn.selection.planning import Planner

    offers, found = Planner.offers, list[int]()

    def counted(self: Planner, which: Any, *more: Any) -> Any:
        found.append(len(which))
        return offers(self, which, *more)

    Planner.offers = counted  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        Planner.offers = offers  # type: ignore[method-assign]


@fingerprint
def planner() -> Facts:
    """Candidates that are weighed and passes of the fits, of a run on 30 columns with all pairs: more than one look."""
    from benchmarks.bench_wide import write_table
    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run

    watched = ("Planner.removed", "Planner.offers", "Planner.best", "Calibrator.run", "estimate")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder, 30)
        made = document("sketch_aim", clients=3, federation={"partition": "iid"}, evaluation=[])
        made["data"] = {"source": str(folder / "table.csv"), "schema": str(folder / "schema.yaml")}
        with counting(*watched) as calls, weighing() as weighed:
            run(parse_config(made), folder / "out", full_page=False)
    return {**calls, "calls for a candidate": sum(weighed)}


@fingerprint
def wide() -> Facts:
    """The same of the other mechanisms of the table of wide tables."""
    many = {"data": {"options": {"rows": 600, "features": 14, "clients": 3}}, "clients": 3}
    names = ("aim", "augflaim", "distributed_aim", "privsyn", "fed_privsyn")
    return {
        f"{key}, {name}": value
        for name in names
        for key, value in cost(name, "Calibrator.run", **{**many, "clients": 1 if name == "aim" else 3}).items()
    }


@fingerprint
def fits() -> Facts:
    """Passes and cells of fits to noisy marginals of a wide model, and the loss that they reach."""
    import numpy as np

    from benchmarks.bench_inference import measurements_of
    from fedsyn.domain import Domain
    from fedsyn.inference import EstimateConfig, estimate, model_size

    rng = np.random.default_rng(0)
    domain = Domain(tuple(f"a{i}" for i in range(12)), (2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6))
    codes = np.stack([rng.integers(0, size, 3000) for size in domain.shape], axis=1).astype(np.uint8)
    noisy = measurements_of(codes, domain, 12, 20_000, rng)
    with counting("Calibrator.run") as calls:
        model = estimate(domain, noisy, config=EstimateConfig(100, 0.0))
    off = sum(float(np.abs(np.ravel(model.project(each.clique)) - np.ravel(each.values)).sum()) for each in noisy)
    return {**calls, "cells": model_size(domain, [each.clique for each in noisy]), "distance": f"{off:.5g}"}


@fingerprint
def growth() -> Facts:
    """Calls of a run as its rows, columns, values, clients and rounds double."""
    from benchmarks.bench_growth import config_of, write_table
    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run

    base = {"rows": 1000, "columns": 5, "values": 4, "clients": 5, "rounds": 2}
    found: Facts = {}
    for grown in (None, *base):
        sizes = {name: 2 * size if name == grown else size for name, size in base.items()}
        with tempfile.TemporaryDirectory() as text:
            write_table(folder := Path(text), sizes, 0.5)
            with counting() as calls:
                run(parse_config(config_of("sketch_aim", "plain", folder, sizes)), folder / "out", full_page=False)
        found[f"calls, {grown or 'base'}"] = calls["calls"]
    return found


@fingerprint
def messages() -> Facts:
    """Messages of every mechanism under every protocol, three rounds, four clients."""
    from benchmarks.bench_messages import PROTOCOLS, configured, counts
    from fedsyn.registry import MECHANISMS

    found: Facts = {}
    for mechanism in MECHANISMS:
        for name, aggregation in PROTOCOLS.items():
            made = None if mechanism == "fed_dp_ctgan" else configured(mechanism, aggregation, 4, 3)
            if made is not None:
                found[f"{mechanism}, {name}"] = " ".join(map(str, sorted(counts(made[0]).values())))
    return found


@fingerprint
def secure_sums() -> Facts:
    """Committee, calls and bytes of sums of 20 clients, and bytes of a whole run."""
    from benchmarks.bench_secure_sum import Facts as Sums
    from benchmarks.bench_secure_sum import members, sums_of

    found: Facts = {}
    for threat in ("semi_honest", "malicious"):
        facts = Sums(20, 300, "secagg", 2, threat)
        with counting() as calls:
            taken = sums_of(facts)
        found[f"calls, {threat}"] = calls["calls"]
        found |= {f"bytes up, {threat}, sum {i}": round(each.up) for i, each in enumerate(taken)}
        found |= {f"members of {n}, {threat}": members(Sums(n, 1, "secagg", 2, threat)) for n in (10, 1000, 100_000)}
    whole = cost("sketch_aim", aggregation={"protocol": "secagg", "noise": "distributed"})
    return {**found, **{f"{key}, a run": value for key, value in whole.items()}}


@fingerprint
def many() -> Facts:
    """Calls of a round of one-way sums that a further client costs, by who adds the noise."""

    def of(clients: int, noise: str) -> int:
        sums = {"aggregation": {"protocol": "plain", "noise": noise}, "options": {"rounds": 1}}
        return int(cost("fed_naive_bayes", clients=clients, federation={"partition": "iid"}, **sums)["calls"])

    return {f"calls a client, {noise}": (of(60, noise) - of(20, noise)) // 40 for noise in ("server", "distributed")}


@fingerprint
def long_tables() -> Facts:
    """Calls of a run on 300,000 rows of Parquet, in blocks."""
    from benchmarks.bench_long import make, schema
    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "table.parquet", 300_000)
        schema().save(folder / "schema.yaml")
        made = document("augflaim", clients=4, federation={"partition": "iid"}, evaluation=[], options={"rounds": 1})
        made["data"] = {"source": str(folder / "table.parquet"), "schema": str(folder / "schema.yaml")}
        made["synthesis"] = {"format": "parquet"}
        with counting() as calls:
            run(parse_config(made), folder / "out", full_page=False)
        written = next((folder / "out").glob("synthetic.parquet"))
        return {**calls, "bytes written": written.stat().st_size}


@fingerprint
def parties() -> Facts:
    """Rounds and bytes of three parties that choose, among honest ones and with every product checked."""
    import numpy as np

    from benchmarks.bench_mpc import measure

    table = np.random.default_rng(0).integers(-500, 500, 1000)
    starts = np.arange(0, 1000, 50)
    found: Facts = {}
    for threat in (False, True):
        for step, spent in zip(("sums", "choice"), measure(table, starts, 20, 32, threat)[:2], strict=True):
            name = f"{step}, {'malicious' if threat else 'semi-honest'}"
            found |= {f"rounds, {name}": spent.rounds, f"bytes, {name}": round(spent.megabytes * 1e6)}
    store = cost("distaim", aggregation={"protocol": "mpc", "noise": "distributed"}, options={"rounds": 3})
    return {**found, **{f"{key}, a run": value for key, value in store.items()}}


@fingerprint
def ciphertexts() -> Facts:
    """Calls and bytes of sums and of a store over ciphertexts."""
    over = {"protocol": "fhe", "noise": "distributed"}
    runs = {
        "sums": cost("sketch_aim", aggregation=over),
        "store": cost("fhaim", aggregation=over, options={"rounds": 3}),
    }
    return {f"{key}, {name}": value for name, found in runs.items() for key, value in found.items()}


@fingerprint
def accounts() -> Facts:
    """Scales that the accounts give for a guarantee, and draws of the samplers."""
    from fedsyn.privacy import _discrete, _noise
    from fedsyn.privacy.conversion import gaussian_mu, zcdp_rho
    from fedsyn.randomness import Randomness

    pairs = [(epsilon, delta) for epsilon in (0.3, 1.0, 10.0) for delta in (1e-5, 1e-9)]
    source = Randomness(0).generator("claims")
    return {
        "rho": " ".join(f"{zcdp_rho(*pair):.8g}" for pair in pairs),
        "mu": " ".join(f"{gaussian_mu(*pair):.8g}" for pair in pairs),
        "draws": digest(_discrete.discrete_gaussian(40.0, 1000, source).tobytes()),
        "grid": f"{_noise.noise_grid(12.0):.8g}",
    }


def main() -> int:
    taken = FINGERPRINTS[sys.argv[1]]()
    print(json.dumps(taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
