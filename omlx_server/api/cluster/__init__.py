"""Health and metrics of the ranks of a cluster."""
