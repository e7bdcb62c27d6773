"""The tokenizer of one model: text to token ids, ids to text and bytes. Any thread. It needs a
Rust backend (tokenizer.json); no code from a model folder ever runs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.model_files.parser_signs import CODED_TEMPLATES
from omlx_server.errors import ModelUnavailable
from omlx_server.text.encoding import encoder
from omlx_server.text.encoding.encoder import Characters, KeptIds, PieceEncoder
from omlx_server.text.encoding.ordinary import OrdinaryEncoder
from omlx_server.text.encoding.pieces import Detokenizer, Pieces
from omlx_server.text.encoding.searching import without_surrogates

_KEPT_OF_CONVERSATIONS, _KEPT_OF_TEXTS = 32 << 20, 16 << 20
"""In bytes: eight for a token of English, so 30 conversations of 131,072 tokens are kept."""


class Tokenizer:
    """Created by `Tokenizer.load(folder)`.

    special_texts       texts of control tokens, which in a message stay ordinary text
    hidden_ids          tokens that show no text in answers
    chat_templates      by name, usually just "default"
    template_variables  what the library hands to a template besides messages (bos_token, …)
    tool_parser         the name of the markup of tool calls, where the model's files tell it
    """

    def __init__(
        self,
        backend: Backend,
        *,
        eos_ids: frozenset[int],
        chat_templates: Mapping[str, str],
        template_variables: Mapping[str, Any],
        tool_parser: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = False
        encoder.bound(backend)
        self._backend = backend
        self.pieces = Pieces(backend)
        of_texts, of_conversations = KeptIds(_KEPT_OF_TEXTS), KeptIds(_KEPT_OF_CONVERSATIONS)
        self._caches = (of_texts, of_conversations)
        self._encoder = PieceEncoder(backend, kept=of_texts)
        is_byte_level = self.pieces.byte_level
        self._ordinary = OrdinaryEncoder(backend, byte_level=is_byte_level, kept=of_conversations)
        self.special_texts = frozenset(self._ordinary.texts.values())
        self.hidden_ids = self.pieces.hidden
        self.eos_ids = eos_ids
        self.chat_templates = dict(chat_templates)
        self.template_variables = dict(template_variables)
        self.tool_parser = tool_parser
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def load(cls, model_dir: Path, *, template: str | None = None) -> "Tokenizer":
        """Read a model folder; `template` replaces its chat template. Raises ModelUnavailable
        without a readable tokenizer.json."""
        config = _tokenizer_config(model_dir)
        source = guarded(
            lambda: AutoTokenizer.from_pretrained(
                str(model_dir), config=config, local_files_only=True, trust_remote_code=False
            )
        )
        if isinstance(source, Crash):
            raise ModelUnavailable(
                f"no usable tokenizer in {model_dir}: {source.reason}"
            ) from source.error
        if not isinstance(source, PreTrainedTokenizerFast):
            raise ModelUnavailable(
                f"the tokenizer in {model_dir} has no fast form",
                hint="Add a tokenizer.json to the model folder.",
            )
        backend = source.backend_tokenizer
        templates = _templates(source, model_dir) if template is None else {"default": template}
        return cls(
            backend,
            eos_ids=_eos_ids(model_dir, source.eos_token_id) | _channel_ends(backend),
            chat_templates=templates,
            template_variables=source.special_tokens_map,
            tool_parser=source.init_kwargs.get("tool_parser_type"),
        )

    def prepare(self) -> None:
        """Make what long texts need. For the thread that loads the model: one of low priority
        would hold the GIL while it waits."""
        self._encoder.prepare()
        self._ordinary.prepare()

    @property
    def kept_bytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    @property
    def characters(self) -> Characters:
        return sum((cache.characters for cache in self._caches), Characters())

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        return frozenset(self._backend.get_vocab(with_added_tokens=True))

    def encode(self, text: str, *, special: bool = True, most: int | None = None) -> list[int]:
        """Return the token ids of `text`. With `special` false, control tokens become ordinary
        ones. Raises TooManyTokens for more than `most`."""
        text = without_surrogates(text)
        return self._encoder.ids(text, most) if special else self._ordinary.encode(text, most)

    def encode_prompt(self, text: str, most: int | None = None) -> list[int]:
        """Return the token ids of a text and the special ones around every text. Raises
        TooManyTokens for more than `most`."""
        return self._encoder.ids(without_surrogates(text), most, special=True)

    def encode_rendered(
        self, rendering: str, restore: Callable[[str], str], most: int | None = None
    ) -> list[int]:
        """Return the token ids of a rendered template. Control tokens come from `rendering`
        only, never from what `restore` puts in. Raises TooManyTokens for more than `most`."""
        return self._ordinary.encode_rendered(
            without_surrogates(rendering), lambda text: without_surrogates(restore(text)), most
        )

    def beginning(self, text: str, count: int) -> list[int]:
        """Return the first `count` token ids, without control tokens."""
        return self._ordinary.beginning(without_surrogates(text), count)

    def counts(self, texts: Sequence[str], most: int) -> list[int]:
        """Return the number of tokens of each text, `most` + 1 for more."""
        return self._encoder.counts([without_surrogates(text) for text in texts], most)

    def decode(self, ids: Iterable[int]) -> str:
        """Return transformers' text of `ids` without special tokens. Of byte tokens that are not
        UTF-8 only the bad bytes are replaced, not the whole run."""
        detokenizer = Detokenizer(self.pieces)
        return "".join([detokenizer.add(token_id) for token_id in ids]) + detokenizer.finish()

    def decode_all(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` with that of special tokens."""
        return b"".join(self.token_bytes(token_id) for token_id in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token within a text; a special token gives its own text."""
        return self.pieces.raw(token_id)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_id(self, text: str) -> int | None:
        return self._backend.token_to_id(text)


def _templates(source: PreTrainedTokenizerFast, model_dir: Path) -> Mapping[str, str]:
    coded = CODED_TEMPLATES.get(source.init_kwargs.get("chat_template_type", ""))
    found = coded or source.chat_template
    if found and isinstance(found, Mapping):
        return found
    template = found or _read_json(model_dir / "chat_template.json").get("chat_template")
    return {"default": template} if isinstance(template, str) else {}


def _tokenizer_config(model_dir: Path) -> PreTrainedConfig:
    """Return the part of config.json that chooses a tokenizer class: transformers refuses some
    others."""
    fields = _read_json(model_dir / "config.json")
    model_type, class_name = fields.get("model_type"), fields.get("tokenizer_class")
    if not isinstance(class_name, str):
        class_name = None
    config_class = CONFIG_MAPPING.get(model_type, PreTrainedConfig)
    config = config_class(name_or_path=str(model_dir), tokenizer_class=class_name)
    if isinstance(model_type, str):
        config.model_type = model_type
    return config


def _eos_ids(model_dir: Path, of_tokenizer: int | None) -> frozenset[int]:
    config = _read_json(model_dir / "config.json")
    text_config = config.get("text_config")
    sources = [config, _read_json(model_dir / "generation_config.json", optional=True)]
    if isinstance(text_config, dict):
        sources.append(text_config)
    ids: set[Any] = {of_tokenizer}
    for source in sources:
        value = source.get("eos_token_id")
        ids.update(value if isinstance(value, list) else (value,))
    return frozenset(token_id for token_id in ids if isinstance(token_id, int))


def _channel_ends(backend: Backend) -> frozenset[int]:
    """The files of some gpt-oss conversions name only one of the ids that end an answer."""
    if backend.token_to_id("<|channel|>") is None:
        return frozenset()
    ids = map(backend.token_to_id, ("<|call|>", "<|return|>"))
    return frozenset(id for id in ids if id is not None)


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        if optional:
            return {}
        raise ModelUnavailable(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}
