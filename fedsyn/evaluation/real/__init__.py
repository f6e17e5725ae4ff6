"""Judges a table by real rows: metrics, scores and scales, an attack.

What it finds is not private.
"""
