"""The version, on its own so that everybody can read it without the public face."""

__version__ = "0.1.0"


def installing(extra: str) -> str:
    """Return what to type for an extra: the wheel's name, as the name of the package need not be ours on an index.

    >>> installing("report")
    "pip install 'fedsyn-0.1.0-py3-none-any.whl[report]'"
    """
    return f"pip install 'fedsyn-{__version__}-py3-none-any.whl[{extra}]'"
