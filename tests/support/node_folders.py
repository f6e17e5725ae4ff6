"""Folders of data holders' nodes for tests, each as its administrator would have it, and requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.ledgers.node_ledger import init_ledger
from fedsyn.loading import parse_config
from fedsyn.node.file import load_node_file
from fedsyn.runs.run_config import run_config_of
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import Envelope

SCHEMA = """
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 9, dtype: integer}
  city: {kind: categorical, categories: [a, b, c, d]}
  smoker: {kind: categorical, categories: ["no", "yes"]}
"""
POLICY: dict[str, Any] = {
    "approval": "always",
    "minimum_cohort": 1,
    "protocols": ["plain", "secagg"],
    "noise": ["server", "local", "distributed"],
    "lifetime": {"epsilon": 10, "delta": 1e-5},
}
RUN: dict[str, Any] = {
    "mechanism": {"name": "sketch_aim", "rounds": 2},
    "data": {"source": "survey", "schema": "schema.yaml"},
    "federation": {"clients": 2, "minimum_cohort": 1},
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "client_sizes": "private"},
    "aggregation": {"protocol": "plain", "noise": "local"},
    "evaluation": [],
    "runtime": {"engine": "deployment", "superlink": "none"},
}


def make_node(folder: Path, number: int = 0, rows: int = 60, policy: Mapping[str, Any] = POLICY, **keys: Any) -> Path:
    """A holder's folder with table, schema, key and ledger; the path of its node.yaml, which also has `keys`."""
    folder.mkdir(parents=True, exist_ok=True)
    source = np.random.default_rng(number)
    lines = [
        f"{source.integers(18, 91)},{source.choice(list('abcd'))},{source.choice(['no', 'yes'])}" for _ in range(rows)
    ]
    (folder / "rows.csv").write_text("\n".join(["age,city,smoker", *lines]) + "\n", encoding="utf-8")
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / "node.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (folder / "node.key").chmod(0o600)
    (folder / "node.key.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    document = {
        "name": f"node-{number}",
        "superlink": "127.0.0.1:9",
        "key": "node.key",
        "data": "rows.csv",
        "schema": "schema.yaml",
        "partition": number,
        "policy": dict(policy),
    }
    document |= keys if "root_certificates" in keys else {"insecure": True, **keys}
    path = folder / "node.yaml"
    path.write_text(yamlio.dumps(document), encoding="utf-8")
    file = load_node_file(path)
    file.state_folder.mkdir(mode=0o700)
    init_ledger(file.ledger_file)
    return path


def run_of(**changes: Any) -> RunConfig:
    """A deployment's configuration; each change replaces keys of one of its nodes."""
    nodes = {name: RUN[name] | change if isinstance(change, dict) else change for name, change in changes.items()}
    return parse_config(RUN | nodes, "run.yaml")


def header_of(
    config: RunConfig,
    request: str,
    kind: str = "ask",
    round: int = 0,
    sequence: int = 0,
    run: str = "first",
    schema: str = SCHEMA,
    order: str = "",
    **params: Any,
) -> dict[str, Any]:
    """A request as the link hands it to the worker."""
    read = Schema.loads(schema, "schema.yaml").adjusted(config.data.bins, config.data.label)
    read = read.records if config.privacy.unit == "person" else read
    if request == "join":
        params = {"schema_hash": read.sha256}
    envelope = Envelope(request, kind, round, config.sha256, params, sequence)
    return {
        "run": 7,
        "run_config": run_config_of(config, schema=read, run=run, order=order),
        "fab_hash": "f" * 64,
        "scalars": envelope.to_scalars(),
    }
