"""A holder's machine: `fedsyn node` answers requests from one table.

It keeps limits that no server moves.

Imports of this room stay light: what answers a request is preloaded by one process and forked.
"""
