"""One model over several processes: the group of ranks, and what of the model each of them has."""
