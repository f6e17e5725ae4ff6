"""Quality of a table from real rows.

Metrics, scores and their scales, an attack. What it finds is not private.

What it finds is not private.
"""
