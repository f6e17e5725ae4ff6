"""How good a table is, asked of its holders: what each of them counts, and what the noisy sums of that say."""
