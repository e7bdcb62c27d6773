"""HTTP itself, whatever the API: bodies, headers, errors, streams, connections."""
