"""Private ranges, bins and categories, found by noisy sums.

They are bought before a run.

Three steps, each a sum of counts with Gaussian noise over all clients, whatever the mechanism is that follows:

1. *Range*: rows by sign and power of two (`ranges.universe`). The outermost buckets that stand out of the noise are the
   range.
2. *Bins*: rows in the cells of a grid within that range, at several resolutions (`ranges.grid`); bins are cut where
   rows are and where rows times width is large (`ranges.cuts`).
3. *Categories*: rows by the next byte of their text, for every prefix that stood out so far (`prefixes`).

Nothing here knows messages or ledgers: `fedsyn.protocol.opening` asks, charges and carries.
"""
