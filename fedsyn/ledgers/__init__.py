"""Ledgers for life of a holder's table, or a party.

They hold what all of its runs have given away.
"""
