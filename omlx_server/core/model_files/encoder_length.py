"""The longest text of an encoder, by its JSON files."""

from collections.abc import Mapping
from typing import Any

from omlx_server.core.model_files.kind import architecture_of

SENTENCE_CONFIG = "sentence_bert_config.json"
_PAD_ID = "pad_token_id"


def first_position(config: Mapping[str, Any]) -> int:
    """RoBERTa's family counts from after its padding id."""
    if "Roberta" not in architecture_of(config):
        return 0
    pad_id = config.get(_PAD_ID)
    return pad_id + 1 if isinstance(pad_id, int) and pad_id >= 0 else 1


def trained_length(sentence_config: Mapping[str, Any], most: int) -> int:
    value = sentence_config.get("max_seq_length")
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return min(most, value)
    return most
