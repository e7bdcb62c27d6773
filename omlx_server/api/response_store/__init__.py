"""Responses that are kept between requests."""
