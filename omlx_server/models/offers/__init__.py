"""Models that can be downloaded, to choose from."""
