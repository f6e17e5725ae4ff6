"""Splits of one table into tables of simulated clients.

One file per family.

`fedsyn.registry` names them; `partitioner(name, **options).split(table, clients, rng)` gives each client's rows.
"""
