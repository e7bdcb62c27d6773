"""The process of each rank of a cluster."""
