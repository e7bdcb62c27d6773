"""Routes for the owner of a server."""
