"""Arithmetic on numbers that nobody sees: secret sharing and homomorphic encryption."""
