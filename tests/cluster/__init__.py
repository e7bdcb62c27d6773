"""Tests of one model over several processes of this machine."""
