"""Fetches public tables.

OpenML's tables and scikit-learn's own come through scikit-learn, those of statsmodels through
statsmodels, others by their address.

Needs a network (except for tables of scikit-learn and statsmodels) and, for OpenML, scikit-learn. What
was fetched is kept in the cache folder, whose files can all be fetched or computed again (tables,
embeddings, stores of simulations).
"""

from __future__ import annotations

import gzip
import importlib
import io
import os
import tarfile
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError
from urllib.parse import urlparse
from urllib.request import urlopen

from fedsyn.errors import DataError
from fedsyn.files import replace_synced
from fedsyn.lazy import pd
from fedsyn.table.data.datasets import Origin
from fedsyn.version import installing


def cache_dir() -> Path:
    """`$FEDSYN_CACHE`, or `fedsyn` in the user's cache folder."""
    if folder := os.environ.get("FEDSYN_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsyn"


_SECONDS = 60


def fetch(origin: Origin, name: str) -> pd.DataFrame:
    """Fetches a registered table with the column names of its origin.

    Raises:
        DataError: says what is missing (network, scikit-learn) and what to do.
    """
    if origin.sklearn is not None:
        table = origin.sklearn.removeprefix("load_")
        datasets = _module("sklearn.datasets", f"scikit-learn is needed for its table '{table}'", "evaluation")
        return cast("pd.DataFrame", getattr(datasets, origin.sklearn)(as_frame=True).frame)
    if origin.statsmodels is not None:
        return _of_statsmodels(origin.statsmodels)
    if origin.openml is not None:
        return fetch_openml(str(origin.openml), name)
    return _fetch_url(origin, name)


def _of_statsmodels(table: str) -> pd.DataFrame:
    """Reads a table that statsmodels ships.

    Its loader does the same, and importing it takes longer than reading most tables.
    """
    package = find_spec("statsmodels")
    if package is None or package.origin is None:
        raise DataError(f"statsmodels is needed for its table '{table}': {installing('demo')}")
    return pd.read_csv(Path(package.origin).parent / "datasets" / table / f"{table}.csv", **_exact_floats())


def fetch_openml(key: str, name: str = "") -> pd.DataFrame:
    """Fetches a table from OpenML by its id or name.

    An id consists of digits. A name stands for its newest active version.

    Raises:
        DataError: no scikit-learn, no network, or no such table.
    """
    datasets = _module("sklearn.datasets", f"scikit-learn is needed for OpenML's table '{key}'", "evaluation")
    which = {"data_id": int(key)} if key.isdigit() else {"name": key}
    try:
        frame: pd.DataFrame = datasets.fetch_openml(
            **which, as_frame=True, parser="auto", data_home=str(cache_dir() / "openml"), n_retries=1
        ).frame
        return frame
    except Exception as error:  # scikit-learn passes on errors of urllib, gzip, json, pandas and its own
        raise DataError(_cannot_fetch(f"OpenML's table '{key}'", name, error)) from None


def _module(name: str, needed: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise DataError(f"{needed}: {installing(extra)}") from None


def _fetch_url(origin: Origin, name: str) -> pd.DataFrame:
    assert origin.url is not None
    suffix = "".join(Path(urlparse(origin.url).path).suffixes[-2:]).lower()
    cached = cache_dir() / f"{name}{suffix}"
    if not cached.is_file():
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            with urlopen(origin.url, timeout=_SECONDS) as response:
                replace_synced(cached, response.read())
        except (URLError, OSError) as error:
            raise DataError(_cannot_fetch(f"'{name}' from {origin.url}", name, error)) from None
    try:
        parts = [
            pd.read_csv(
                io.BytesIO(content),
                sep=origin.separator,
                header=None if origin.header else 0,
                names=list(origin.header) or None,
                skipinitialspace=True,
                keep_default_na=False,
                na_values=[""],
                **_exact_floats(),
                low_memory=False,
            )
            for content in _unpack(cached.read_bytes(), origin.members)
        ]
        return pd.concat(parts, ignore_index=True)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(
            f"what {origin.url} gave is not the expected table ({type(error).__name__}); "
            f"delete {cached} to fetch it again"
        ) from None


def _unpack(content: bytes, members: tuple[str, ...]) -> list[bytes]:
    """The files at the end of a path through nested archives, decompressed."""
    files = [content]
    for member in members:
        names = member.split(" + ")
        if zipfile.is_zipfile(io.BytesIO(files[0])):
            with zipfile.ZipFile(io.BytesIO(files[0])) as archive:
                files = [archive.read(name) for name in names]
        else:
            with tarfile.open(fileobj=io.BytesIO(files[0])) as tar:
                # Read into memory, never unpacked to disk: a member's path cannot lead anywhere.
                files = [tar.extractfile(name).read() for name in names]  # type: ignore[union-attr]
    return [gzip.decompress(file) if file[:2] == b"\x1f\x8b" else file for file in files]


def _cannot_fetch(what: str, name: str, error: Exception) -> str:
    reason = getattr(error, "reason", None) or type(error).__name__
    file = f"{name}.csv or {name}.csv.gz" if name else "a CSV file and its schema"
    advice = f"without a network, put {file} into a folder and set FEDSYN_DATA to it"
    return f"cannot fetch {what} ({reason}); {advice}"


def _exact_floats() -> dict[str, Any]:
    """Returns options with which `read_csv` reads every float exactly.

    A number on the edge of a bin must not slip below it.

    pandas 3 always does, and warns about the option that older ones need.
    """
    return {} if int(pd.__version__.split(".")[0]) >= 3 else {"float_precision": "round_trip"}
