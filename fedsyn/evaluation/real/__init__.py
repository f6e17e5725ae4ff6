"""How good a table is, from real rows: metrics, scores and their scales, an attack. What it finds is not private."""
