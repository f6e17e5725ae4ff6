"""Parties: the services that compute on a store which none of them sees. `interface` says what they are asked."""
