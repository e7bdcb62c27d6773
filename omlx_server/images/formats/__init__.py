"""What files of images say about themselves, found without decoding a pixel. Each format has a
file that walks through its parts once, checks them, and keeps what the pixels need.

What is kept is all that Pillow gets to see, so texts, profiles, further frames and thumbnails cost
nothing, however large they say they are.
"""
