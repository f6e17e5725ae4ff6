"""The register of claims: each published figure, the command that prints it, and whether it can have moved since."""
