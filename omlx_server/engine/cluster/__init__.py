"""Links between the ranks of a cluster, and the work of ranks other than 0."""
