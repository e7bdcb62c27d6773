"""Commands that look and change nothing: doctor, status, version."""
