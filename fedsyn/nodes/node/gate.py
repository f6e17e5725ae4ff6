"""The gate of a node: what a request has to pass before anything of the run is remembered, charged or read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedsyn.config import RunConfig
from fedsyn.nodes.node.approvals import Approvals
from fedsyn.nodes.node.file import NodeFile
from fedsyn.nodes.node.policy import Asked, Policy
from fedsyn.runs.orders import Subject


class Admitted(NamedTuple):
    """A request that the holder allows.

    Attributes:
        config: of the run.
        subject: the run's name, and the hashes of its configuration and of this node's schema under it.
        operator: public key of whoever signed the run; "" where nobody did.
        asked: the facts that were looked at.
    """

    config: RunConfig
    subject: Subject
    operator: str
    asked: Asked


class Gate:
    """Policy and approvals of one node, read once.

    Args:
        file: of the node, with absolute file names.
    """

    def __init__(self, file: NodeFile) -> None:
        self.policy = Policy(file)
        self.approvals = Approvals(file.state_folder / "approvals")

    def admit(
        self,
        run_config: Mapping[str, Any],
        fab_hash: str,
        verifications: Mapping[str, str],
        scalars: Mapping[str, Any],
    ) -> Admitted:
        """What of a request the holder's policy allows; every fact is the server's until it has passed.

        Args:
            run_config: as the server submitted it.
            fab_hash: SHA-256 of the submitted app, in hex digits.
            verifications: of the submitted app.
            scalars: of the message.

        Raises:
            NodeError: the holder does not allow it; one sentence of public facts.
            ProtocolError: the message is no request.
        """
        config = self.policy.read(run_config)
        asked = Asked.of(config, run_config, fab_hash, verifications, scalars)
        self.policy.check(asked)
        return Admitted(config, self.policy.subject(asked), self.policy.operator(asked), asked)

    def require_approval(self, admitted: Admitted) -> None:
        """Asks a person, where the policy says so: only once policy and ledger have let the run pass.

        Raises:
            WaitsForHolder: nobody has decided yet.
            NodeError: somebody said no.
        """
        if self.policy.needs_approval:
            self.approvals.require(admitted.subject, admitted.operator, admitted.config.to_dict())


__all__ = ["Admitted", "Gate"]
