"""The version, on its own so that everybody can read it without the public face."""

__version__ = "0.1.0"
