"""The prefix cache over HTTP: statistics, pins, archives, resets."""
