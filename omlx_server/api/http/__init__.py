"""What is HTTP: bodies, headers, errors, streams, connections."""
