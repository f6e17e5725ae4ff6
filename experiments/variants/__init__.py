"""Mechanisms with some of their choices taken back: as their papers print them, or as a comparison needs them.

Each is named by its path in a configuration, and is its shipped class but for what its options say.
"""
