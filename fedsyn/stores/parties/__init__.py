"""Parties: services that compute on a store which none sees.

`interface` says what they are asked.
"""
