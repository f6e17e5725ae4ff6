"""For authors of mechanisms: the conformance check, and the awkward tables that it and the tests share."""
