"""The contest of benchmarks/bench_secure_sum.py: one sum of vectors, formed in several ways."""
