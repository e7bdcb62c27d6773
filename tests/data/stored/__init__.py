"""What earlier versions have stored of prompts: cold tiers and archives, which must stay readable.

`python -m tests.data.stored NAME` records another one with the version at hand, in a folder of its
own. What stands there is never recorded again: that is its point.
"""

from pathlib import Path

HERE = Path(__file__).parent
PROMPT = "What was written down long ago is still known today, word for word. " * 3
SETTINGS = {
    "plain": (),
    "quantized": ("kv_cache.scheme=turboquant", "kv_cache.bits=3.5"),
    "checkpoints": (),
}
"""Of the server that has stored it, and of the one that reads it."""
