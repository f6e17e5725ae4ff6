"""Client half of each mechanism, in the strategy's file name."""

import fedsyn.plugins  # noqa: F401 - of a checkout: `clients.flaim` is the module that runs
