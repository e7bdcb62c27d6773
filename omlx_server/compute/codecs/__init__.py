"""What there is to know of each cache class: how it is cut into parts of blocks and rebuilt from
them, how it runs in a batch, and what memory it takes.

There is one file for each kind of cache. mlx-lm is pinned exactly, and a contract test for each
class guards the pin.
"""
