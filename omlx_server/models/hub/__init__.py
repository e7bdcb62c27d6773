"""Finds, downloads and checks models from a hub."""
