"""Metrics of texts that became tokens, from the tokenizers of loaded models."""

import weakref
from collections.abc import Iterable

from prometheus_client.core import Metric

from omlx_server.api.metric_helpers import MODEL, OWN, counters, label_of
from omlx_server.api.models.served_model import ServedModel
from omlx_server.text.encoding.kept_ids import Characters
from omlx_server.text.tokenizer import Tokenizer


class TextMetrics:
    """Counts characters by model, over the tokenizers of all its loads."""

    def __init__(self) -> None:
        self._earlier: dict[str, Characters] = {}
        self._last: dict[str, tuple[weakref.ref[Tokenizer], Characters]] = {}

    def family(self, names: Iterable[str], loaded: Iterable[ServedModel]) -> Metric:
        for model in loaded:
            self._note(model.names[0], model.tokenizer)
        values: dict[tuple[str, str], float] = {}
        for name in names:
            total = self._total(name)
            values[label_of(name), "encoded"] = total.encoded
            values[label_of(name), "kept"] = total.reused
        return counters(
            f"{OWN}text_characters",
            "Characters of texts that became tokens, by how: they were encoded, or their tokens "
            "were kept since an earlier prompt.",
            (MODEL, "source"),
            values,
        )

    def _note(self, name: str, tokenizer: Tokenizer) -> None:
        last = self._last.get(name)
        if last is not None and last[0]() is not tokenizer:
            self._earlier[name] = self._total(name)
        self._last[name] = weakref.ref(tokenizer), tokenizer.characters

    def _total(self, name: str) -> Characters:
        last = self._last.get(name)
        earlier = self._earlier.get(name, Characters())
        return earlier if last is None else earlier + last[1]
