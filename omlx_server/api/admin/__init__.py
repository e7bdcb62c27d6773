"""What only the owner of a server may do."""
