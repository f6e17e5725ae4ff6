"""The version, readable without loading the public face."""

__version__ = "0.1.0"


def installing(extra: str) -> str:
    """Returns the command that installs an extra.

    It names the wheel, because the name of the package may differ on an index.

    >>> installing("report")
    "pip install 'fedsyn-0.1.0-py3-none-any.whl[report]'"
    """
    return f"pip install 'fedsyn-{__version__}-py3-none-any.whl[{extra}]'"
