"""How good a table is, from real rows: metrics, scores with their scale, a membership attack. Nothing here is private."""
