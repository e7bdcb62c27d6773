"""Connections of clients: their bounds, their shares of the descriptors, who accepts them."""
