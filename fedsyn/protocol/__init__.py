"""Requests and replies, and the bases of both halves of a mechanism.

`messages`: Ask, Sum, encoding. `strategy`: MechanismStrategy, the server half. `client`: TableClient, the client half.
Import from the submodules: a client needs nothing of the server's.
"""
