"""The tests in shards of at most 20 minutes on two idle cores: `make check` and `make test-all`.

    python tests/shards.py [SHARD ...] [-- PYTEST OPTIONS ...]

Without a name all but `check` run one after the other, each to its end; a line for each says how it went. `default` is
what `make test` runs. `flower` is what touches Flower, on each minor that fedsyn allows and on the newest
(FLOWER_WHEELS: a folder of wheels, without an index). The others are the tests marked slow below the paths that they
name, `rooms` those below no path that is named here. The commit at which a shard passed stands in claims/shards.yaml.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARDS = ROOT / "claims" / "shards.yaml"
MOST = 20  # minutes

#: What `make check` runs: the arrows, the words, and the folders that everything else stands on.
CHECK = (
    "unit/test_arrows.py",
    "unit/test_wording.py",
    "unit/table/counting",
    "unit/inference",
    "unit/ledgers",
    "unit/privacy",
    "unit/selection",
    "unit/wire",
)
SLOW: dict[str, tuple[str, ...]] = {
    "rooms": (),
    "nodes": ("unit/node", "unit/deploy", "unit/flower", "unit/stores", "unit/ledgers"),
    "killed": ("unit/runs",),
    "requests": ("unit/privacy", "unit/protocol"),
    "conformance": ("unit/front/testing",),
    "audits": ("audit",),
    "figures": ("golden", "property", "statistical"),
    "runs": (
        "e2e/test_constrained_runs.py",
        "e2e/test_crypto_service.py",
        "e2e/test_engines.py",
        "e2e/test_fhaim.py",
        "e2e/test_foreign_package.py",
        "e2e/test_growth.py",
        "e2e/test_own_table.py",
        "e2e/test_person_engines.py",
        "e2e/test_parties_services.py",
        "e2e/test_ray.py",
        "e2e/test_same_bits.py",
        "e2e/test_secure_sums.py",
        "e2e/test_stores.py",
        "e2e/test_tutorials.py",
        "e2e/test_wheel.py",
    ),
    "deployed": (
        "e2e/test_crypto_deployment.py",
        "e2e/test_deploy.py",
        "e2e/test_deployed_evaluation.py",
        "e2e/test_deployed_persons.py",
        "e2e/test_deployed_resume.py",
        "e2e/test_deployment.py",
        "e2e/test_flooded_gate.py",
        "e2e/test_node_federation.py",
        "e2e/test_parties_deployment.py",
        "e2e/test_private_bins.py",
    ),
    "machines": (
        "e2e/test_deploy_comers.py",
        "e2e/test_deploy_docs.py",
        "e2e/test_deploy_parties.py",
        "e2e/test_parties_namespaces.py",
    ),
    "faults": ("e2e/test_bad_minutes.py", "e2e/test_deploy_faults.py"),
    "operator": ("e2e/test_operator.py",),
}
ALL = ("default", *SLOW, "flower")


def command(shard: str) -> list[str]:
    """The command of a shard, without this Python."""
    if shard == "flower":
        wheels = os.environ.get("FLOWER_WHEELS")
        given = ["--find-links", wheels] if wheels else []
        return ["tests/flower_minors.py", *given, "-n", "2", "--dist", "loadgroup"]
    if shard == "default":
        chosen = ["tests"]
    elif shard == "check":
        chosen = ["-m", "not slow and not thorough", *(f"tests/{path}" for path in CHECK)]
    elif SLOW[shard]:
        chosen = ["-m", "slow", *(f"tests/{path}" for path in SLOW[shard])]
    else:
        named = [path for paths in SLOW.values() for path in paths]
        chosen = ["-m", "slow", "tests", *(f"--ignore=tests/{path}" for path in named)]
    return ["-m", "pytest", "-n", "2", "--dist", "loadgroup", *chosen]


def remember(shard: str) -> None:
    """Writes down the commit at which a shard passed; nothing where files have changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    if commit and not git("status", "--porcelain", "--", ".", ":!claims/shards.yaml"):
        text = SHARDS.read_text(encoding="utf-8")
        SHARDS.write_text(re.sub(rf"^{shard}:.*$", f'{shard}: "{commit}"', text, flags=re.MULTILINE), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", metavar="SHARD", help=f"check, or one of: {', '.join(ALL)}")
    typed = sys.argv[1:]
    split = typed.index("--") if "--" in typed else len(typed)
    shards = parser.parse_args(typed[:split]).shards or list(ALL)
    if unknown := set(shards) - {*ALL, "check"}:
        sys.exit(f"there is no shard {sorted(unknown)[0]!r}; there are check, {', '.join(ALL)}")
    lines, failed = [], False
    for shard in shards:
        started = time.monotonic()
        code = subprocess.run([sys.executable, *command(shard), *typed[split + 1 :]], cwd=ROOT, check=False).returncode
        minutes = (time.monotonic() - started) / 60
        failed |= code != 0
        if code == 0 and not typed[split + 1 :]:
            remember(shard)
        slow = f", more than {MOST}: cut it in two" if minutes > MOST else ""
        lines.append(f"{shard:12} {'failed' if code else 'passed'} {minutes:6.1f} min{slow}")
    if len(lines) > 1:
        print(*lines, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
