"""Finds the model that an agent is to use, and its abilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.cli.server_client.http import NoAnswer, ServerClient
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import UsageError
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from omlx_server.settings.overrides import context_of as context_under

NO_KEY = "none-needed"
LEAST_CONTEXT = 32_000
"""Tokens that agents need. Their own prompts and tools take 5,000 to 17,000 of them (measured)."""

_MOST_OUTPUT = 32_000
_HELLO = [{"role": "user", "content": "Hello"}]

Listing = Mapping[str, Any]
"""An entry of GET /v1/models."""


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """The server and model for a client. `key` is never empty: clients insist on one. `context`
    is in tokens, 0 if unknown."""

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
    served = _served(server, usual, settings, must_answer=must_answer)
    chosen = choose(server.url, served, model) or usual
    listing = served.get(chosen, {})
    context = context_of(listing)
    if must_answer:
        context = _asked(server, chosen, served) or context
    takes_images = "image" in _architecture(listing, "input_modalities")
    return LaunchTarget(server.url, chosen, server.key or NO_KEY, takes_images, context)


def choose(url: str, served: Mapping[str, Listing], model: str) -> str:
    """Return `model`, or else the first that chats, if any. Ollama's `NAME:latest` means NAME.
    Raises UsageError if the model is not served or can't chat."""
    if not served:
        return model
    if model not in served:
        model = model.removesuffix(":latest")
    if model and model not in served:
        raise UsageError(f"{url} does not serve {model}", hint=f"it has {', '.join(served)}")
    chosen = model or next(filter(lambda name: chats(served[name]), served), next(iter(served)))
    if not chats(served[chosen]):
        raise _can_not_chat(chosen, "it embeds or ranks texts", served)
    return chosen


def chats(listing: Listing) -> bool:
    """Whether the model answers with text. True if unknown."""
    gives = _architecture(listing, "output_modalities")
    return not gives or "text" in gives


def context_of(listing: Listing) -> int:
    """Return the tokens of the context; 0 if unknown."""
    length = listing.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else 0


def short_context(
    model: str, context: int, needs: str = "agents need", least: int = LEAST_CONTEXT
) -> str:
    """Return a warning if the context holds fewer than `least` tokens, else ""."""
    if not 0 < context < least:
        return ""
    return (
        f"{model} has a context of {context:,} tokens, and {needs} {least:,} or more; "
        "serve a model with a longer one (omlx-server serve MODEL)"
    )


def _served(
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
    # They take half a second.
    from omlx_server.cli.models.list import images_of
    from omlx_server.cli.models.named import with_adapter

    try:
        model, _ = with_adapter(settings.models.resolve_alias(name), settings)
    except UsageError:
        return None
    takes = ["text", "image"] if images_of(model, settings)["images"] else ["text"]
    gives = ["text"] if model.kind is ModelKind.CHAT else [model.kind.value]
    listing: dict[str, Any] = {
        "architecture": {"input_modalities": takes, "output_modalities": gives}
    }
    if model.context_length:
        overrides = settings.overrides_of(model.names)
        listing["max_model_len"] = context_under(overrides, model.context_length)
    return listing


def _asked(server: ServerClient, model: str, served: Mapping[str, Listing]) -> int:
    """Return the loaded model's context in tokens; 0 without an answer. Raises UsageError if it
    has no chat template."""
    try:
        reply = server.post("/tokenize", {"model": model, "messages": _HELLO})
    except NoAnswer:
        return 0
    if reply.error.get("code") == "no_chat_template":
        raise _can_not_chat(model, "it has no chat template", served)
    return context_of(reply.json_object or {}) if reply.status == 200 else 0


def _can_not_chat(model: str, why: str, served: Mapping[str, Listing]) -> UsageError:
    others = [name for name in served if name != model and chats(served[name])]
    hint = "serve one that does: omlx-server serve MODEL"
    if others:
        hint = f"take another with --model: {', '.join(others)}"
    return UsageError(f"{model} can't chat: {why}", hint=hint)


def _architecture(listing: Listing, name: str) -> Sequence[str]:
    architecture = listing.get("architecture")
    values = architecture.get(name) if isinstance(architecture, Mapping) else None
    return values if isinstance(values, list) else []
