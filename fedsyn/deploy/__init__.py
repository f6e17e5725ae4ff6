"""A federation on real machines, from its operator's side.

It writes everybody's files, supervises the SuperLink, and starts runs that survive it.
"""
