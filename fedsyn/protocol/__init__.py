"""Bases of both halves of a mechanism.

A request of the server half becomes an answer of the client half.

`contract`: what the halves agree on. `client`: TableClient, the client half. `strategy`: MechanismStrategy, the server
half, on `joining` (who takes part), `exchange` (one request, there and back) and `record` (what happened). Import from
the submodules: a client needs nothing of the server's.
"""
