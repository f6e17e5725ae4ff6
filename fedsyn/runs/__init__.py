"""The way from a configuration to a run directory.

Its steps are `prepare`, `serve` and `finish`, on one of three `engines`.

`directory` knows the files that a run leaves, `run_config` how a configuration travels through Flower; `report` is what
`fedsyn report` says about a run. Import from the submodules: they differ in
what they load, and a client may load `run_config` only.
"""
