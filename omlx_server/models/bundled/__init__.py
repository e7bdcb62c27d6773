"""Models that are had without a hub, out of wheels."""
