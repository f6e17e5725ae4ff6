"""Scores, sketches and plans that select the cliques to measure."""
