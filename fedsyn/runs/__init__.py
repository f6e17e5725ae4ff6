"""From a configuration to a run directory: prepare, serve, finish, on one of three engines.

Import from the submodules; the public face is `fedsyn` itself.
"""
