"""Tokenizers of encoders."""

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from tests.text import makers


def bert() -> Backend:
    """[CLS] a [SEP], and [CLS] a [SEP] b [SEP] with the second text of type 1."""
    backend = makers.wordpiece()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("[UNK]", "[SEP]")])
    cls, sep = (backend.get_vocab()[text] for text in ("[CLS]", "[SEP]"))
    backend.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    return backend
