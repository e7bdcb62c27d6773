"""Models that come without a hub, in wheels from PyPI."""
