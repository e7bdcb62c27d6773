"""Turns strings into token ids and back: tokenizer, chat template, detokenizer, stop strings. No
mlx.

Encoding runs in worker threads, detokenising on the asyncio thread, once per token.
"""
