"""A table: its description, its sources, its counts, and what is private of its description."""
