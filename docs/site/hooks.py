"""Hooks of mkdocs: links that work on GitHub work on the site.

A page of `docs/` may link a file of the repository outside of `docs/` (a configuration, an experiment, a source). The
site gets a page for each file that is linked so, whatever that links in turn, and the links lead there. Notebooks
become pages with their outputs. A stale figure says so. Nothing is fetched.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

from claims.register import noted

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_IMAGE = re.compile(r"(<(?:img|source)\b[^>]*?\b(?:src|srcset)=\")([^\"]+)(\")")
_FENCE = re.compile(r"(^(?P<mark>```+|~~~+).*?^(?P=mark)[ \t]*$)", re.MULTILINE | re.DOTALL)
_CODE = {".yaml": "yaml", ".py": "python", ".toml": "toml", ".json": "json", ".txt": "text", ".cff": "yaml"}

# Source path of every page that this file makes, by its place on the site.
_made: dict[str, Path] = {}


def on_files(files: Files, config: Any) -> Files:
    """Adds notebooks, and every file of the repository that a page links."""
    _made.clear()
    pages = [Path(str(file.abs_src_path)) for file in files.documentation_pages()]
    waiting = [*pages, *sorted(DOCS.glob("tutorials/*.ipynb"))]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        uri = _place(path)
        if uri != _in_docs(path) and uri not in _made:
            _made[uri] = path
            if _is_text(path):
                files.append(File.generated(config, uri, content=_text(path)))
            else:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
        if _is_text(path):
            waiting += [target for link in _links(path) if (target := _target(link, path)) is not None]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files of the repository into links to their pages, and notes which figures are stale."""
    uri = page.file.src_uri
    path = _made.get(uri, DOCS / uri)
    if path.suffix == ".md":
        markdown = noted(markdown, path.relative_to(ROOT).as_posix())
    return markdown if path.suffix in _CODE else _outside_fences(markdown, lambda text: _rewrite(text, path, uri))


def _rewrite(text: str, path: Path, uri: str) -> str:
    def moved(match: re.Match[str]) -> str:
        target = _target(match[2], path)
        if target is None:
            return match[0]
        anchor = match[2].partition("#")[1:]
        return f"{match[1]}{os.path.relpath(_place(target), Path(uri).parent)}{''.join(anchor)}{match[3]}"

    return _IMAGE.sub(moved, _LINK.sub(moved, text))


def _links(path: Path) -> list[str]:
    found: list[str] = []

    def note(text: str) -> str:
        found.extend(match[2] for pattern in (_LINK, _IMAGE) for match in pattern.finditer(text))
        return text

    if path.is_dir() or path.suffix in (".md", ".ipynb"):
        _outside_fences(_text(path), note)
    return found


def _outside_fences(text: str, change: Any) -> str:
    parts, at = [], 0
    for match in _FENCE.finditer(text):
        parts += [change(text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*parts, change(text[at:])])


def _target(link: str, path: Path) -> Path | None:
    """The file of the repository that a link leads to, as it stands on the site; None for any other link."""
    name = unquote(link.partition("#")[0])
    if not name or re.match(r"[a-z]+:", name):
        return None
    target = (path.parent / name).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return None  # mkdocs complains about it
    return target / "README.md" if (target / "README.md").exists() else target


def _in_docs(path: Path) -> str | None:
    if not path.is_relative_to(DOCS) or path.is_relative_to(DOCS / "site") or path.suffix == ".ipynb":
        return None
    return path.relative_to(DOCS).as_posix()


def _place(path: Path) -> str:
    """Where a file of the repository stands on the site."""
    known = _in_docs(path)
    if known is not None:
        return known
    if path.suffix == ".ipynb" and path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix() + ".md"
    name = path.relative_to(ROOT).as_posix()
    return f"repository/{name}" if path.suffix == ".md" or not _is_text(path) else f"repository/{name}.md"


def _is_text(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".md", ".ipynb", *_CODE) or path.name in ("LICENSE", "Makefile")


def _text(path: Path) -> str:
    """A file as a page."""
    if path.is_dir():
        names = sorted(item.name for item in path.iterdir() if item.is_file())
        return f"# {path.relative_to(ROOT)}\n\n" + "".join(f"- [{name}]({path.name}/{name})\n" for name in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    return f"# {path.relative_to(ROOT)}\n\n````{_CODE.get(path.suffix, 'text')}\n{text}\n````\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    parts = [f"```python\n{source}\n```"]
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        shown = "".join(output.get("text", ()) or data.get("text/plain", ()))
        if "text/html" in data:
            parts.append("<div class='output'>" + "".join(data["text/html"]) + "</div>")
        elif shown:
            parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts)
