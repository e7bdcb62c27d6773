"""What there is to know of each cache class: how it becomes parts of blocks and is rebuilt from
them, how it runs in a batch, what memory it takes.

One file per class; nobody else tells caches apart by their class. mlx-lm is pinned exactly, and a
contract test per class guards the pin.
"""
