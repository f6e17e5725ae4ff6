"""Keys, certificates and TLS of the processes of a federation."""
