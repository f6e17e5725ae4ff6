"""Tables: description, sources and counts.

Also what is private of a table's description.
"""
