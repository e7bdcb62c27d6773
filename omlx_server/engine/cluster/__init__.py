"""What rank 0 and the other ranks of a cluster say to each other, and what the others do."""
