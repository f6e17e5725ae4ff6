"""Flower entry point of the client side: `fedsyn.runs.holders` says what a node brings to a run, and refuses."""

from fedsyn.runs.holders import app

__all__ = ["app"]
