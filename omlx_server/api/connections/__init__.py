"""Connections of clients, bounded in number, size and time."""
