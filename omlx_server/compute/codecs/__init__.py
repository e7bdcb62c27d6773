"""Codecs: how each cache class is cut into blocks and rebuilt, batched, and measured in bytes."""
