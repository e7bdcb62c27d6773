"""The page of the server: its files, and what it asks before it knows who is there."""
