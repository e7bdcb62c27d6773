"""Makes the objects of a server from its settings and connects them."""
