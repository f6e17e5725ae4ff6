"""Federated, differentially private synthetic tables on Flower."""

__version__ = "0.1.0"
