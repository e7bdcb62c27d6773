"""Finds the model that an agent is to use, and its abilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from omlx_server.cli.server_client.http import NoAnswer, ServerClient
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import UsageError
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from omlx_server.settings.overrides import context_of

NO_KEY = "none-needed"
LEAST_CONTEXT = 32_000
"""Tokens that agents need. Their own prompts and tools take 5,000 to 17,000 of them (measured)."""

_MOST_OUTPUT = 32_000  # tokens
_HELLO = [{"role": "user", "content": "Hello"}]

Listing = Mapping[str, Any]
"""An entry of GET /v1/models."""


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """The server and model for a client. `key` is never empty. `context`: tokens, 0 if unknown."""

    url: str
    model: str
    key: str = NO_KEY
    takes_images: bool = False
    context: int = 0

    @property
    def output(self) -> int:
        """The most tokens of one answer: a quarter of the context at most."""
        return min(self.context // 4, _MOST_OUTPUT)


def target_of(
    server: ServerClient, model: str, settings: Settings, *, must_answer: bool
) -> LaunchTarget:
    """Return `model`, or else the server's first model that chats; without an answer the default
    model by its files. Raises NoAnswer if the server `must_answer`, UsageError if the model is
    unknown or can't chat, else OmlxError."""
    usual = model or settings.models.default or STARTER.name
    listings = _listings(server, usual, settings, must_answer=must_answer)
    chosen = choose_model(server.url, listings, model) or usual
    listing = listings.get(chosen, {})
    context = listed_context(listing)
    if must_answer:
        context = _context_when_loaded(server, chosen, listings) or context
    takes_images = "image" in _architecture(listing, "input_modalities")
    return LaunchTarget(server.url, chosen, server.key or NO_KEY, takes_images, context)


def choose_model(url: str, listings: Mapping[str, Listing], model: str) -> str:
    """Return `model`, or else the first that chats, if any. Ollama's `NAME:latest` means NAME.
    Raises UsageError if the model is not served or can't chat."""
    if not listings:
        return model
    if model not in listings:
        model = model.removesuffix(":latest")
    if model and model not in listings:
        raise UsageError(f"{url} does not serve {model}", hint=f"it has {', '.join(listings)}")
    if not model:
        chatting = [name for name in listings if can_chat(listings[name])]
        model = next(iter(chatting or listings))
    if not can_chat(listings[model]):
        raise _cannot_chat_error(model, "it embeds or ranks texts", listings)
    return model


def can_chat(listing: Listing) -> bool:
    """Whether the model answers with text. True if unknown."""
    output_kinds = _architecture(listing, "output_modalities")
    return not output_kinds or "text" in output_kinds


def listed_context(listing: Listing) -> int:
    """Return the tokens of the context; 0 if unknown."""
    length = listing.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else 0


def short_context_warning(
    model: str, context: int, needs: str = "agents need", least: int = LEAST_CONTEXT
) -> str:
    """Return a warning if the context holds fewer than `least` tokens, else ""."""
    if not 0 < context < least:
        return ""
    return (
        f"{model} has a context of {context:,} tokens, and {needs} {least:,} or more; "
        "serve a model with a longer one (omlx-server serve MODEL)"
    )


def _listings(
    server: ServerClient, usual: str, settings: Settings, *, must_answer: bool
) -> Mapping[str, Listing]:
    try:
        return server.model_listings()
    except NoAnswer:
        if must_answer:
            raise
    listing = _listing_on_disk(usual, settings)
    return {} if listing is None else {usual: listing}


def _listing_on_disk(name: str, settings: Settings) -> dict[str, Any] | None:
    """Describe a model on this machine as GET /v1/models would."""
    # These imports take half a second.
    from omlx_server.cli.models.list import image_facts
    from omlx_server.cli.models.named import find_with_adapter

    try:
        model, _ = find_with_adapter(settings.models.resolve_alias(name), settings)
    except UsageError:
        return None
    takes_images = image_facts(model, settings)["images"]
    architecture = {
        "input_modalities": ["text", "image"] if takes_images else ["text"],
        "output_modalities": ["text"] if model.kind is ModelKind.CHAT else [model.kind.value],
    }
    listing: dict[str, Any] = {"architecture": architecture}
    if model.context_length:
        overrides = settings.overrides_of(model.names)
        listing["max_model_len"] = context_of(overrides, model.context_length)
    return listing


def _context_when_loaded(server: ServerClient, model: str, listings: Mapping[str, Listing]) -> int:
    """Let the server load the model; return its context in tokens, or 0. Raises UsageError."""
    try:
        reply = server.post("/tokenize", {"model": model, "messages": _HELLO})
    except NoAnswer:
        return 0
    if reply.error.get("code") == "no_chat_template":
        raise _cannot_chat_error(model, "it has no chat template", listings)
    return listed_context(reply.json_object or {}) if reply.status == HTTPStatus.OK else 0


def _cannot_chat_error(model: str, why: str, listings: Mapping[str, Listing]) -> UsageError:
    others = [name for name in listings if name != model and can_chat(listings[name])]
    hint = "serve one that does: omlx-server serve MODEL"
    if others:
        hint = f"take another with --model: {', '.join(others)}"
    return UsageError(f"{model} can't chat: {why}", hint=hint)


def _architecture(listing: Listing, name: str) -> Sequence[str]:
    architecture = listing.get("architecture")
    values = architecture.get(name) if isinstance(architecture, Mapping) else None
    return values if isinstance(values, list) else []
