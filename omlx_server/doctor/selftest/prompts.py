"""Prompts of the self-test: sentences of random words. No two prompts begin alike by chance."""

import random

from omlx_server.text.tokenizer import Tokenizer

_WHO = ("miller", "sailor", "baker", "teacher", "farmer", "painter", "doctor", "child")
_HOW = ("old", "quiet", "clever", "tired", "young", "careful", "cheerful", "proud")
_DOES = ("carries", "finds", "paints", "repairs", "sells", "hides", "borrows", "describes")
_WHAT = ("lantern", "letter", "basket", "violin", "clock", "bridge", "garden", "kettle")
_WHERE = ("harbour", "market", "forest", "village", "station", "library", "river", "kitchen")


class Prompts:
    """Makes prompts of a model's own tokens, the same on every machine for one `seed`. `vocab` is
    the number of its logits."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self.random = random.Random(seed)

    def tokens(self, count: int) -> tuple[int, ...]:
        tokens: list[int] = []
        while len(tokens) < count:
            ids = [id for id in self._tokenizer.encode(self._sentence()) if id < self._vocab]
            tokens += ids or [self.random.randrange(self._vocab)]
        return tuple(tokens[:count])

    def _sentence(self) -> str:
        who, how, does, what, where = map(self.random.choice, (_WHO, _HOW, _DOES, _WHAT, _WHERE))
        number = self.random.randrange(2, 1000)
        return f"The {how} {who} {does} the {what} number {number} near the {where}. "
