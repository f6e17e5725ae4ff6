"""How large the house is: code, rooms, files that name protocols, frames of a sum, words of docs, seconds of the loop.

    python benchmarks/house.py                    # this checkout
    python benchmarks/house.py --since COMMIT     # beside what a commit has (read from git, nothing is checked out)
    python benchmarks/house.py --loop             # also times `make check` and `make test`

Code lines are lines that hold a token of the program: no blanks, comments or docstrings. A file names protocols if a
string literal in it is one of their names. A sum's frames are those between the driver and the method of a client
half that counts, in process, secure sums; a return upwards is a frame in a file that the same call had left.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import subprocess
import sys
import time
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("fedsyn", "strategies", "clients", "partitioners")
PROTOCOLS = {"plain", "secagg", "mpc", "fhe"}
#: Files whose words people read as documentation; docs/reference and docs/statements.md are written by a command.
DOCS = ("README.md", "docs/")
PRINTED = ("docs/reference/", "docs/statements.md", "docs/comparison.md")

Files = Callable[[], Iterator[tuple[str, str]]]


def here() -> Iterator[tuple[str, str]]:
    """(path, text) of this checkout's Python and Markdown."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md") and path.is_file() and not path.is_symlink():
            yield name, path.read_text(encoding="utf-8")


def at(commit: str) -> Files:
    """The same of a commit."""

    def files() -> Iterator[tuple[str, str]]:
        def git(*words: str) -> str:
            return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

        for line in git("ls-tree", "-r", commit).splitlines():
            mode, name = line.split()[0], line.split("\t")[1]
            if name.endswith((".py", ".md")) and mode != "120000":
                yield name, git("show", f"{commit}:{name}")

    return files


def code_lines(text: str) -> int:
    """Lines with a token that is neither a comment nor a docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            first = node.body[0]
            documented |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    held: set[int] = set()
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - documented)


def names_protocols(text: str) -> bool:
    return any(isinstance(node, ast.Constant) and node.value in PROTOCOLS for node in ast.walk(ast.parse(text)))


def counted(files: Files) -> dict[str, int]:
    """The figures that follow from the text of the files."""
    found = dict.fromkeys(("files", "code lines", "files that name protocols", "words of docs"), 0)
    rooms: set[str] = set()
    for name, text in files():
        top = name.split("/")[0]
        if name.endswith(".py") and top in PRODUCT:
            found["files"] += 1
            found["code lines"] += code_lines(text)
            found["files that name protocols"] += names_protocols(text)
            if top == "fedsyn" and name.count("/") > 1:
                rooms.add(name.split("/")[1])
        elif name.endswith(".md") and name.startswith(DOCS) and not name.startswith(PRINTED):
            found["words of docs"] += len(text.split())
    return {**found, "rooms at the door": len(rooms)}


def frames() -> tuple[int, int]:
    """(frames, returns upwards) between a mechanism's `yield` and a client's method, of one secure sum in process."""
    import pandas as pd

    import fedsyn
    from fedsyn.plugins.clients.sketch_aim import SketchAimClient

    seen: list[list[str]] = []
    real = SketchAimClient.one_way

    def watched(self: SketchAimClient, *given: object, **named: object) -> object:
        stack = [(frame.filename, frame.function) for frame in inspect.stack()[1:]]
        driver = next(i for i, (_, function) in enumerate(stack) if function == "drive")
        seen.append([file for file, _ in stack[:driver]])
        return real(self, *given, **named)

    table = pd.DataFrame({"a": [0, 1, 0, 1] * 50, "b": ["x", "y"] * 100})
    columns = {
        "a": {"kind": "categorical", "categories": [0, 1]},
        "b": {"kind": "categorical", "categories": ["x", "y"]},
    }
    SketchAimClient.one_way = watched  # type: ignore[method-assign,assignment]
    try:
        fedsyn.Synthesizer(epsilon=1.0, delta=1e-6, schema={"columns": columns}, rounds=1).fit([table] * 3)
    finally:
        SketchAimClient.one_way = real  # type: ignore[method-assign]
    deepest = max(seen, key=len)
    rooms = [Path(file).parent.name + "/" + Path(file).stem for file in reversed(deepest)]
    visited, upwards, last = set[str](), 0, ""
    for room in rooms:
        upwards += room != last and room in visited
        visited.add(room)
        last = room
    return len(deepest), upwards


def seconds(goal: str) -> float:
    """Wall seconds of a make goal."""
    started = time.monotonic()
    subprocess.run(["make", goal], cwd=ROOT, check=True)
    return time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--loop", action="store_true")
    options = parser.parse_args()
    now, then = counted(here), counted(at(options.since)) if options.since else {}
    for name, value in now.items():
        print(f"{name:<28} {value:>8,}" + (f"   {then[name]:>8,} at {options.since}" if then else ""))
    depth, upwards = frames()
    print(f"{'frames of a sum':<28} {depth:>8}\n{'returns upwards':<28} {upwards:>8}")
    if options.loop:
        for goal in ("check", "test"):
            print(f"{'seconds of make ' + goal:<28} {seconds(goal):>8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
