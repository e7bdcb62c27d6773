"""What one running process does: it listens, logs, reloads its settings, ends."""
