"""Draws pages, pictures and tables of runs and sweeps, from facts alone."""
