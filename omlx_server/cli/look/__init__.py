"""The commands doctor, status and version, which change nothing."""
