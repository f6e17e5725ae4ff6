"""Machines: a holder's node, computing parties, the operator's deployment, and Flower under them."""
