"""The process of one server: it listens, logs, reloads its settings and ends."""
