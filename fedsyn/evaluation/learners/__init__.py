"""What is learned from a synthetic table: classifiers and regressions, and how well they do on real rows."""
