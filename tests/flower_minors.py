"""Runs the tests that touch Flower on each minor that fedsyn allows: `make test-all SHARD=flower`.

    python tests/flower_minors.py [--slow] [--find-links DIR] [--only MINOR] [pytest options or files ...]

The minor of this Python's own environment is tested as it is. For each other one a small environment is made beside
it: that minor's `flwr` alone, before everything else that is installed here. So the tests run on the same NumPy and
the same Ray, and only Flower differs; where its other requirements differ from what is installed, that is said. A
minor that cannot be installed (no index, no wheel) is named in the end: it was not tested. Exit code 0 if no test
failed, and at least one minor was tested.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

from fedsyn.flower.minors import KNOWN

ROOT = Path(__file__).resolve().parents[1]
#: A test file that names one of these touches Flower.
TOUCHES = re.compile(r"\bflwr\b|fedsyn\.flower|\bloopback\b|flower-super")

#: The command `fedsyn` of an environment.
COMMAND = """#!{python}
from fedsyn.cli import main

if __name__ == "__main__":
    main()
"""


def files() -> list[str]:
    """Test files that touch Flower."""
    found = sorted(path for folder in ("unit", "e2e") for path in (ROOT / "tests" / folder).rglob("test_*.py"))
    return [str(path) for path in found if TOUCHES.search(path.read_text(encoding="utf-8"))]


def environment(minor: str, folder: Path, find_links: Path | None) -> Path | str:
    """The Python of an environment with this minor of Flower; or why there is none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    if find_links is not None:
        command += ["--no-index", "--find-links", str(find_links)]
    done = subprocess.run([*command, f"flwr=={minor}.*"], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else f"pip ended with {done.returncode}"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.check_output([str(python), "-c", code], text=True).strip())
    rest = f"{ROOT}\n{sysconfig.get_path('purelib')}\n"
    (own / "zz-rest.pth").write_text(rest, encoding="utf-8")  # read last: its own `flwr` comes first
    fedsyn = folder / "bin" / "fedsyn"
    fedsyn.write_text(COMMAND.format(python=python), encoding="utf-8")
    fedsyn.chmod(0o755)
    return python


def unmet(python: Path) -> list[str]:
    """What this Flower requires and the environment does not have, as `pip check` says it."""
    command = [str(python), "-m", "pip", "check"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [line for line in said.splitlines() if line.startswith("flwr ")]


def tested(python: Path, minor: str, options: list[str]) -> bool:
    """Whether the tests pass on this Python, whose Flower is of this minor."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    code = "from importlib.metadata import version; import flwr, sys; print(version('flwr'), flwr.__file__)"
    found = subprocess.check_output([str(python), "-c", code], env=variables, text=True).strip()
    print(f"== Flower {minor}: {found}", flush=True)
    if not found.startswith(f"{minor}."):
        raise RuntimeError(f"the environment for {minor} has Flower {found}")
    for line in unmet(python):
        print(f"   not met: {line}", flush=True)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, env=variables, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="also the tests that are marked slow")
    parser.add_argument("--find-links", type=Path, help="folder of wheels; default: pip's own index")
    parser.add_argument("--only", help="one minor, such as 1.42")
    given, options = parser.parse_known_args()
    options = options if any("test_" in option for option in options) else [*options, *files()]
    if given.slow:
        options = ["-m", "slow or not slow", *options]
    here, passed, failed, missing = version("flwr"), list[str](), list[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="fedsyn-flower-") as folder:
        for minor in (f"{major}.{number}" for major, number in KNOWN):
            if given.only not in (None, minor):
                continue
            made: Path | str = Path(sys.executable)
            if not here.startswith(f"{minor}."):
                made = environment(minor, Path(folder) / minor, given.find_links)
            if isinstance(made, str):
                missing.append(f"{minor} ({made})")
            else:
                (passed if tested(made, minor, options) else failed).append(minor)
    for label, minors in (("passed", passed), ("failed", failed), ("could not be installed, not tested", missing)):
        print(f"{label}: {', '.join(minors) or 'none'}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
