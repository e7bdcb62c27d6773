"""What one server process does: it listens, logs, reloads its settings and ends."""
