"""Messages between server and clients, and a client's holdings."""
