"""Splits of one table into tables of simulated clients.

One file per family.

`fedsyn.registry` names them; `partitioner(name, **options).split(table, clients, rng)` gives each client's rows.
"""

import fedsyn.plugins  # noqa: F401 - of a checkout: `partitioners.iid` is the module that runs
