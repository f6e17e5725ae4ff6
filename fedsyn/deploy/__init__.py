"""A federation on real machines, from its operator's side.

Everybody's files, the SuperLink under supervision, runs that survive it.
"""
