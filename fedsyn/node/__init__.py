"""A holder's machine: `fedsyn node` answers a federation's requests from one table, within limits that no server moves.

Imports of this room stay light: what answers a request is preloaded by one process and forked.
"""
