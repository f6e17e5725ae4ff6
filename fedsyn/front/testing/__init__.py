"""Tools for authors of mechanisms.

They are the conformance check, and the awkward tables that it and the tests share.
"""
