"""Quality of a table, by its holders' counts.

What each of them counts, and what the noisy sums of that say.
"""
