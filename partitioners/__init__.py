"""Ways to split one table into the tables of simulated clients; one file per family.

`fedsyn.registry` names them; `partitioner(name, **options).split(table, clients, rng)` gives each client's rows.
"""
