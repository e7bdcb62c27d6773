"""HTTP itself, the same for all APIs: bodies, headers, errors, streams."""
