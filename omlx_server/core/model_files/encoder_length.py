"""The longest text of an encoder, by its JSON files."""

from collections.abc import Mapping
from typing import Any

from omlx_server.core.model_files.kind import architecture_of

SENTENCE_CONFIG = "sentence_bert_config.json"


def first_position(config: Mapping[str, Any]) -> int:
    """Return the first token's position: RoBERTa's family counts from after its padding id."""
    if "Roberta" not in architecture_of(config):
        return 0
    pad_id = config.get("pad_token_id")
    return pad_id + 1 if isinstance(pad_id, int) and pad_id >= 0 else 1


def trained_length(sentence_config: Mapping[str, Any], most: int) -> int:
    length = sentence_config.get("max_seq_length")
    if isinstance(length, int) and not isinstance(length, bool) and length > 0:
        return min(most, length)
    return most
