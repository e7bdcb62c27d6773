"""A client's JSON schema made ready for the grammar engine. Pure."""
