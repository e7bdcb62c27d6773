"""Stores for responses that are kept between requests: in memory or on the disk."""
