"""Walks through image files without decoding a pixel: checks all parts, keeps what the pixels need.

Pillow sees only what is kept, so texts, profiles, further frames and thumbnails cost nothing.
Faults raise BadRequest.
"""
