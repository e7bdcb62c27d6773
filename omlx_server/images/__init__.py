"""Images of a conversation, before a model sees them: from what a request holds to bytes, from
bytes to pixels, and from pixels to the arrays that a model's tower takes. No mlx.

Pillow is the extra `vision`. It is imported when the first image is decoded, so that all of this
can be imported without it.
"""
