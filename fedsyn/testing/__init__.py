"""What tests of mechanisms share: awkward tables, and the conformance check."""
