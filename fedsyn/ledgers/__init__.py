"""Ledgers for life: what a holder's table, or a party, has given away in all of its runs."""
