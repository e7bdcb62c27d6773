"""How each cache class of mlx-lm becomes parts of blocks, and is rebuilt from them.

One file per class; class names appear nowhere else. mlx-lm is pinned exactly, and a contract test
per class guards the pin.
"""
