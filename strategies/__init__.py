"""Server half of each mechanism, one file per family.

Each is a Flower `Strategy`. Where Flower's own strategies have five hooks that `start` calls once a round, a mechanism
has one generator, `protocol()`, which yields requests and gets their answers back, as `httpx.Auth.auth_flow` does: read
it from top to bottom, as the paper's pseudo-code. `MechanismStrategy.start` sends each request to clients over a Grid.
"""

import fedsyn.plugins  # noqa: F401 - of a checkout: `strategies.flaim` is the module that runs
