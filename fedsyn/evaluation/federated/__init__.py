"""Asks holders how good a table is: what each counts, and what the noisy sums say."""
