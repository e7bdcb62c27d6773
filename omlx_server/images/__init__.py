"""Images of requests: from data URLs to bytes, pixels, and arrays for a model's tower. No mlx.

Pillow is the extra `vision`, imported when the first image is decoded.
"""
