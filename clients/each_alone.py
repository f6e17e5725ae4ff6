"""The client half of the baseline `each_alone`, and its contract.

No rows of two holders come together.

The server half is `strategies/each_alone.py`; docs/mechanisms/each_alone.md says what it is for.
"""

from __future__ import annotations

from fedsyn.capabilities import PLAIN
from fedsyn.mechanism import PrivacyStatement, RunConfig, require
from fedsyn.plugins.clients.sketch_aim import SketchAimClient, SketchAimContract


class EachAloneContract(SketchAimContract):
    """Contract of sketch_aim between the server and one holder at a time.

    Every request goes to one client, and what it is asked follows from public facts and from its own released values.
    A row sits at one client, so the others' releases cost it nothing (parallel composition), and each client spends
    the whole budget on its own rows.
    """

    own_sizes = True  # a holder's table is made for its own row count
    alone = True
    statement = PrivacyStatement(
        server_sees="noisy one-way marginals, sketches and chosen marginals of each holder by itself; {server}",
        client_sees="groups of neighbouring values, cliques and weights that follow from its own released values",
        cost="{cost}; what is measured, and how, is chosen from released values behind a filter that adds up mu^2. "
        "A row sits at one client, so what other clients release costs it nothing",
    )

    @classmethod
    def default_aggregation(cls, *, alone: bool = False) -> dict[str, str]:
        """Returns noise of each holder, since there is nobody to hide among."""
        return {"protocol": PLAIN.name, "noise": "local"}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        federation, name = config.federation, config.mechanism.name
        require(
            config.aggregation.protocol == PLAIN.name,
            f"aggregation.protocol: '{name}' adds up nothing, so there is no sum to hide a holder in; use plain, with "
            "noise: local",
        )
        require(
            federation.sampling_rate == 1.0
            and federation.minimum_cohort == 1
            and federation.max_participations is None,
            f"federation: '{name}' asks every holder, one at a time; leave out sampling_rate, minimum_cohort and "
            "max_participations",
        )


class EachAloneClient(SketchAimClient):
    """Answers the requests of sketch_aim for a table of its own rows."""

    Contract = EachAloneContract
