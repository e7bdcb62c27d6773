"""Tests of how rank 0 meets the other ranks."""
