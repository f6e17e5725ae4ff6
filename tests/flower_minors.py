"""Runs the tests that touch Flower on each minor that fedsyn allows, and on the newest: `make test-all SHARD=flower`.

    python tests/flower_minors.py [--slow] [--find-links DIR] [--only MINOR] [pytest options or files ...]

The minor of this Python's own environment is tested as it is. For each other one a small environment is made beside
it: that minor's `flwr` alone, before everything else that is installed here. So the tests run on the same NumPy and
the same Ray, and only Flower differs; where its other requirements differ from what is installed, that is said.
Before the tests come Flower's private names (fedsyn/flower/private.py): a minor that lacks some is not tested
further, and they are named. A newer minor than those allowed is tried in a copy of the tree that allows it. A minor
that cannot be installed (no index, no wheel) is named in the end: it was not tested. Exit code 0 if no test failed on
an allowed minor, and at least one of them was tested.
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

from planted_faults import copied

from fedsyn.flower.minors import KNOWN

ROOT = Path(__file__).resolve().parents[1]
#: A test file that names one of these touches Flower.
TOUCHES = re.compile(r"\bflwr\b|fedsyn\.flower|\bloopback\b|flower-super")

#: The file by which an environment has everything else.
REST = "zz-rest.pth"

#: The command `fedsyn` of an environment.
COMMAND = """#!{python}
from fedsyn.front.cli import main

if __name__ == "__main__":
    main()
"""


def files(tree: Path) -> list[str]:
    """Test files that touch Flower."""
    found = sorted(path for folder in ("unit", "e2e") for path in (tree / "tests" / folder).rglob("test_*.py"))
    return [str(path) for path in found if TOUCHES.search(path.read_text(encoding="utf-8"))]


def environment(wanted: str, folder: Path, find_links: Path | None) -> Path | str:
    """The Python of an environment with this Flower, such as 'flwr==1.42.*'; or why there is none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    if find_links is not None:
        command += ["--no-index", "--find-links", str(find_links)]
    done = subprocess.run([*command, wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else f"pip ended with {done.returncode}"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.check_output([str(python), "-c", code], text=True).strip())
    rest = f"{ROOT}\n{sysconfig.get_path('purelib')}\n"
    (own / REST).write_text(rest, encoding="utf-8")  # read last: its own `flwr` comes first
    fedsyn = folder / "bin" / "fedsyn"
    fedsyn.write_text(COMMAND.format(python=python), encoding="utf-8")
    fedsyn.chmod(0o755)
    return python


def unmet(python: Path) -> list[str]:
    """What this Flower requires and the environment does not have, as `pip check` says it."""
    command = [str(python), "-m", "pip", "check"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [line for line in said.splitlines() if line.startswith("flwr ")]


def flower_of(python: Path) -> str:
    """The version of Flower that this Python has."""
    code = "from importlib.metadata import version; print(version('flwr'))"
    return subprocess.check_output([str(python), "-c", code], text=True).strip()


def allowing(minor: str, folder: Path) -> Path:
    """A copy of the tree that allows a further minor, in the tree's place in that minor's environment."""
    tree = folder / "tree"
    copied(tree)
    (tree / "tests" / "unit" / "flower" / "test_flower_minors.py").unlink()  # says which are allowed
    file = tree / "fedsyn" / "flower" / "minors.py"
    known = ", ".join(map(str, (*KNOWN, tuple(map(int, minor.split("."))))))
    text, count = re.subn(r"(?m)^KNOWN = .*$", f"KNOWN = ({known})", file.read_text(encoding="utf-8"))
    if count != 1:
        raise RuntimeError(f"expected one line 'KNOWN = ...' in {file}, got {count}")
    file.write_text(text, encoding="utf-8")
    (rest,) = folder.rglob(REST)
    rest.write_text(rest.read_text(encoding="utf-8").replace(str(ROOT), str(tree), 1), encoding="utf-8")
    return tree


def broken(python: Path, tree: Path, options: list[str]) -> str:
    """What breaks on this Python's Flower: names that it lacks, or tests; '' if nothing does."""
    variables = os.environ | {"PYTHONPATH": str(tree)}
    print(f"== Flower {flower_of(python)}", flush=True)
    for line in unmet(python):
        print(f"   not met: {line}", flush=True)
    code = "from fedsyn.flower import private; print(*private.missing(), sep='\\n')"
    command = [str(python), "-c", code]
    done = subprocess.run(command, env=variables, cwd=tree, capture_output=True, text=True, check=False)
    lacks = [line for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()]
    if lacks:
        print(*(f"   {line}" for line in lacks), sep="\n", flush=True)
        return lacks[-1] if done.returncode else "; ".join(lacks)
    given = options if any("test_" in option for option in options) else [*options, *files(tree)]
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *given]
    done = subprocess.run(command, env=variables, cwd=tree, check=False)
    return f"pytest ended with {done.returncode}" if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="also the tests that are marked slow")
    parser.add_argument("--find-links", type=Path, help="folder of wheels; default: pip's own index")
    parser.add_argument("--only", help="one minor, such as 1.42; or newest")
    given, options = parser.parse_known_args()
    if given.slow:
        options = ["-m", "slow or not slow", *options]
    known = [f"{major}.{number}" for major, number in KNOWN]
    here, found, missing = version("flwr"), dict[str, str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="fedsyn-flower-") as folder:
        for minor in (*known, "newest"):
            if given.only not in (None, minor):
                continue
            made: Path | str = Path(sys.executable)
            if not here.startswith(f"{minor}."):
                wanted = "flwr" if minor == "newest" else f"flwr=={minor}.*"
                made = environment(wanted, Path(folder) / minor, given.find_links)
            if isinstance(made, str):
                missing.append(f"{minor} ({made})")
            elif minor != "newest":
                found[minor] = broken(made, ROOT, options)
            elif (newest := ".".join(flower_of(made).split(".")[:2])) not in known:
                found[newest] = broken(made, allowing(newest, Path(folder) / minor), options)
            else:
                print(f"the newest that installs is {newest}, which is allowed")
    print("passed:", ", ".join(minor for minor, why in found.items() if not why) or "none")
    print("broken:", ", ".join(f"{minor} ({why})" for minor, why in found.items() if why) or "none")
    print("could not be installed, not tested:", ", ".join(missing) or "none")
    return 1 if any(found.get(minor) for minor in known) or not found else 0


if __name__ == "__main__":
    sys.exit(main())
