"""Brings the ranks of a cluster together, before and while they compute one model."""
