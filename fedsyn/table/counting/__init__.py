"""Counting rows: marginals, the workload and its candidates, distances between marginals."""
