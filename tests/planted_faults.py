"""Faults, each planted in a copy of the tree and looked for by the default tests: `make faults`.

    python tests/planted_faults.py [NAME ...] [--whole] [-- PYTEST OPTIONS ...]

A fault is a text of one file and what stands in its place, so it depends on no line number; where the text is gone,
the fault is refused in one sentence and has to be planted anew. Each is looked for by the tests of its folder, to the
first failure; `--whole` runs every default test instead. Exits with 1 if a fault was not found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copied(tree: Path) -> None:
    """Copies the checkout without what git ignores; `docs/site` is not the built `site`."""
    everywhere, built = shutil.ignore_patterns(".*", "__pycache__"), {"build", "dist", "site"}

    def left_out(folder: str, names: list[str]) -> set[str]:
        return everywhere(folder, names) | (built & set(names) if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, tree, ignore=left_out)


@dataclass(frozen=True)
class Fault:
    """A fault, and where it should be found.

    Attributes:
        file: that has it.
        old: the text that is replaced; it stands in the file exactly once.
        new: the fault.
        tests: that should find it, a file or folder below `tests`.
    """

    file: str
    old: str
    new: str
    tests: str


FAULTS = {
    "too little noise": Fault(
        "fedsyn/privacy/_noise.py",
        "noise = sigma * np.asarray(source.standard_normal(values.shape)",
        "noise = 0.95 * sigma * np.asarray(source.standard_normal(values.shape)",
        "statistical/test_noise_distributions.py",
    ),
    "a choice twice as sharp": Fault(
        "fedsyn/privacy/_noise.py",
        "(epsilon / (2.0 * sensitivity))",
        "(epsilon / sensitivity)",
        "statistical/test_noise_distributions.py",
    ),
    "charged after the draw": Fault(
        "fedsyn/privacy/ledger.py",
        "        self.charge(release)\n"
        "        return [_noise.gaussian(array, release.sigma, source) for array in arrays]\n",
        "        noisy = [_noise.gaussian(array, release.sigma, source) for array in arrays]\n"
        "        self.charge(release)\n        return noisy\n",
        "unit/privacy/test_privacy_ledger.py",
    ),
    "half the sensitivity": Fault(
        "fedsyn/privacy/ledger.py",
        "        release = self.unit.entered(release)\n        release = replace(release, clients",
        "        release = self.unit.entered(replace(release, sensitivity=0.5 * release.sensitivity))\n"
        "        release = replace(release, clients",
        "unit/privacy/test_privacy_ledger.py",
    ),
    "shares of noise for clients that need not come": Fault(
        "fedsyn/privacy/distributed.py",
        "honest = fewest - corrupted\n",
        "honest = asked - corrupted\n",
        "unit/privacy/test_privacy_distributed.py",
    ),
    "a ledger's line that no disk has": Fault(
        "fedsyn/files.py",
        "os.write(file, rest) :]\n        os.fsync(file)\n",
        "os.write(file, rest) :]\n",
        "unit/ledgers/test_node_book.py",
    ),
    "exact counts to whoever asks": Fault(
        "fedsyn/protocol/client.py",
        "if envelope.kind != record.kind:",
        "if False:",
        "unit/protocol",
    ),
    "one round more than allowed": Fault(
        "fedsyn/protocol/cohorts.py",
        "len(rounds) >= node.max_participations",
        "len(rounds) > node.max_participations",
        "unit/protocol/test_participations.py",
    ),
    "a charge that the journal does not have": Fault(
        "fedsyn/protocol/recorder.py",
        '        self._journal.keep({"kind": "charge", "release": release.to_dict()})\n',
        "",
        "unit/runs/test_resume.py",
    ),
    "a mask that is subtracted": Fault(
        "fedsyn/aggregation/secagg/client.py",
        "[mask_key(facts, layer, nonce) for layer in layers], ())",
        "(), [mask_key(facts, layer, nonce) for layer in layers])",
        "unit/aggregation/test_committee_protocol.py",
    ),
    "a clique's values in another order": Fault(
        "fedsyn/inference/measurements.py",
        "order = sorted(range(len(clique)), key=lambda axis: axes.rank[clique[axis]])",
        "order = list(range(len(clique)))",
        "unit/inference",
    ),
    "measurements weighed by sigma": Fault(
        "fedsyn/inference/measurements.py",
        "weights = [(smallest / sigma) ** 2 for",
        "weights = [(smallest / sigma) for",
        "unit/inference",
    ),
    "a holder's limit that nobody looks at": Fault(
        "fedsyn/ledgers/node_ledger.py",
        "require_budget(limit.fits(spent, more, kind), partial",
        "require_budget(True, partial",
        "unit/ledgers/test_node_book.py",
    ),
    "another run under a known name": Fault(
        "fedsyn/ledgers/admission.py",
        "if lines.runs[run].facts != facts:",
        "if False:",
        "unit/ledgers/test_node_book.py",
    ),
    "a party that releases once too often": Fault(
        "fedsyn/ledgers/party_ledger.py",
        "affordable(self.spent + rho, self.budget.rho)",
        "affordable(self.spent, self.budget.rho)",
        "unit/ledgers/test_parties_book.py",
    ),
    "an order's norm unchecked": Fault(
        "fedsyn/stores/parties/checks.py",
        "refuse(norm != facts.norm,",
        "refuse(False,",
        "unit/stores/parties/test_parties_orders.py",
    ),
    "a link that is lost and called kept": Fault(
        "fedsyn/evaluation/verdict.py",
        '{"link": 0.5,',
        '{"link": 0.95,',
        "unit/evaluation/test_verdict_thresholds.py",
    ),
    "a verdict whose sign is turned": Fault(
        "fedsyn/evaluation/verdict.py",
        "kept >= NEEDED * len(some)",
        "kept <= NEEDED * len(some)",
        "unit/evaluation/test_verdicts.py",
    ),
    "a verdict that is kinder": Fault(
        "fedsyn/evaluation/real/attack.py",
        "if self.lower <= 0.5:",
        "if self.lower <= 0.6:",
        "unit/evaluation/real/test_table_comparison.py",
    ),
    "a predicted interval of half the width": Fault(
        "fedsyn/evaluation/predicted/quality.py",
        'SPREADS = {"all": 0.14,',
        'SPREADS = {"all": 0.07,',
        "unit/evaluation/predicted/test_predicted_quality.py",
    ),
    "a chance of a false link for each pair": Fault(
        "fedsyn/evaluation/predicted/links.py",
        "CHANCE / max(1, len(pairs))",
        "CHANCE",
        "unit/evaluation/predicted/test_looks.py",
    ),
    "a limit that half of the links pass": Fault(
        "fedsyn/evaluation/predicted/limits.py",
        "POWER = 0.9\n",
        "POWER = 0.5\n",
        "unit/evaluation/predicted/test_looks.py",
    ),
    "what chance adds taken for a link": Fault(
        "fedsyn/evaluation/predicted/looks.py",
        "prior = _SQUARES[:, None] * self.units.shares + self.chance",
        "prior = _SQUARES[:, None] * self.units.shares",
        "unit/evaluation/predicted/test_looks.py",
    ),
    "a sketch's noise taken for a link": Fault(
        "fedsyn/evaluation/predicted/looks.py",
        "share = apart / (apart + self.sketch.noises * noise)",
        "share = 1.0",
        "unit/evaluation/predicted/test_looks.py",
    ),
    "groups that are taken to show all of a link": Fault(
        "fedsyn/evaluation/predicted/looks.py",
        "return min(1.0, math.prod(effects.visible(n, g) / effects.visible(n, coarse) for n, g, coarse in parts))",
        "return 1.0",
        "unit/evaluation/predicted/test_looks.py",
    ),
    "a chance of a false share for each column": Fault(
        "fedsyn/evaluation/predicted/unlisted.py",
        "CHANCE / len(names)",
        "CHANCE",
        "unit/evaluation/predicted/test_unlisted.py",
    ),
    "a correlation whose sign is turned and called kept": Fault(
        "fedsyn/evaluation/verdict.py",
        "kept = was * now / most**2",
        "kept = abs(was * now) / most**2",
        "unit/evaluation/test_verdict_thresholds.py",
    ),
    "a chance of a false link for each pair of real rows": Fault(
        "fedsyn/evaluation/real/pairs.py",
        "comparison.chance * len(wanted) < CHANCE",
        "comparison.chance < CHANCE",
        "unit/evaluation/test_verdict_thresholds.py",
    ),
    "an honest interval of half the width": Fault(
        "fedsyn/evaluation/analysis/combining.py",
        "return self.estimate - high, self.estimate + high",
        "return self.estimate - high / 2, self.estimate + high / 2",
        "unit/evaluation/analysis/test_analysis.py",
    ),
    "a tail that ends too soon": Fault(
        "fedsyn/table/schema/inside.py",
        "if between[-1] > 0:",
        "if False:",
        "unit/table/schema/test_inside.py",
    ),
}


def plant(fault: Fault, tree: Path) -> None:
    """Writes a fault into a tree.

    Raises:
        SystemExit: the text that it replaces is not there, or more than once.
    """
    file = tree / fault.file
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.count(fault.old) != 1:
        sys.exit(f"{fault.file} has {text.count(fault.old)} times {fault.old.strip()!r}, expected once: plant it anew")
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def found_by(fault: Fault, options: list[str], whole: bool) -> str:
    """The first test that fails on the fault; '' if none does."""
    with tempfile.TemporaryDirectory(prefix="fedsyn-fault-") as folder:
        tree = Path(folder) / "tree"
        copied(tree)
        plant(fault, tree)
        tests = "tests" if whole else f"tests/{fault.tests}"
        command = [sys.executable, "-m", "pytest", "-x", "-rfE", "--tb=no", "-p", "no:cacheprovider", *options, tests]
        variables = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
        failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failed[0] if failed else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {'; '.join(FAULTS)}")
    parser.add_argument("--whole", action="store_true", help="look for each with every default test")
    typed = sys.argv[1:]
    split = typed.index("--") if "--" in typed else len(typed)
    given, options = parser.parse_args(typed[:split]), typed[split + 1 :]
    if unknown := set(given.names) - set(FAULTS):
        sys.exit(f"no fault is named {sorted(unknown)[0]!r}; there are: {'; '.join(FAULTS)}")
    names = given.names or list(FAULTS)
    missed = 0
    for name in names:
        started = time.perf_counter()
        by = found_by(FAULTS[name], options, given.whole)
        missed += not by
        print(f"{'found' if by else 'MISSED':6} {time.perf_counter() - started:5.0f} s  {name}: {by}", flush=True)
    print(f"{len(names) - missed} of {len(names)} faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
