"""Server half of each mechanism, one file per family."""
