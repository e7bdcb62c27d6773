"""One model over several processes: the ranks, and each one's part of the model."""
