"""What travels between server and clients, and what a client holds."""
