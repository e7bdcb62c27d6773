"""Makes the HTTP side of a chat model."""

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from omlx_server.api.chat.shared_ends import strips_reasoning
from omlx_server.api.models.served_model import Preset, Served, ServedModel, TemplateValue
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.models.description import ModelDescription, describe
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides, PromptOverride, context_of
from omlx_server.text.dialect import Dialect, dialect_of
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.overflow import Overflow
from omlx_server.text.reasoning.constraint import ReasoningMarkers
from omlx_server.text.reasoning.style import template_kwargs
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.encoders import judge
from omlx_server.wiring.images import changed_image_reader
from omlx_server.wiring.overrides.in_force import request_defaults

_log = logging.getLogger(__name__)
# The most characters of a prompt, against runaway templates.
_RUNAWAY = 1 << 26
# A normalizer may take so many characters for one.
_NORMALIZED = 4


def make_served(
    located: Located,
    engine: GeneratorClient,
    settings: Settings,
    fingerprint: Callable[[], str],
    system_fingerprint: str,
    tokenizer: Tokenizer,
    vocab: int,
) -> ServedModel:
    """Return the HTTP side of a loaded model whose logits have `vocab` entries. `fingerprint`
    covers all weights; it is called for archives."""
    overrides = settings.overrides_of(located.names)
    description = _described(located)
    context = context_length(located.names[0], description.context_length, overrides)
    most_chars = min(_RUNAWAY, _NORMALIZED * context * max(map(len, tokenizer.vocabulary)))
    template = ChatTemplate(tokenizer, max_chars=most_chars)
    render = partial(template.render, kwargs=overrides.chat_template_kwargs)
    parsers = overrides.tool_parser or "", overrides.reasoning_parser or ""
    dialect = dialect_of(tokenizer, render, *parsers)
    grammars = Grammars(Vocabulary(tokenizer, vocab))
    model = ServedModel(
        names=located.names,
        system_fingerprint=system_fingerprint,
        engine=engine,
        archives=PrefixArchives(engine, located.names[0], functools.cache(fingerprint)),
        tokenizer=tokenizer,
        template=template,
        context_length=context,
        vocab=min(vocab, tokenizer.vocab_size),
        created=int(time.time()),
        grammars=grammars,
        markers=_markers(dialect, tokenizer, vocab),
        dialect=dialect,
        strips_reasoning=strips_reasoning(render),
        overflow=Overflow(settings.context.overflow, settings.context.low_water),
        recommended=description.recommended,
        judge=functools.cache(lambda: judge(located, engine, tokenizer)),
    )
    return _with_defaults(model, overrides, settings)


def _described(located: Located) -> ModelDescription:
    description = describe(located.path)
    if description.ignored:
        _log.warning(
            "%s goes without its makers' defaults: %s", located.names[0], description.ignored
        )
    return description


def _markers(dialect: Dialect, tokenizer: Tokenizer, width: int) -> ReasoningMarkers | None:
    if dialect.style is None or dialect.in_channels:
        return None
    return ReasoningMarkers(dialect.style, tokenizer, width, starts=dialect.thinks)


def changed_model(model: Served, settings: Settings) -> Served:
    if not isinstance(model, ServedModel):
        return model
    overrides, context = settings.overrides_of(model.names), settings.context
    changed = replace(
        model,
        overflow=Overflow(context.overflow, context.low_water),
        images=changed_image_reader(model.images, settings),
    )
    return _with_defaults(changed, overrides, settings)


def context_length(model: str, trained: int, overrides: ModelOverrides) -> int:
    """Return a model's context in tokens: the override, at most `trained`."""
    if overrides.context_length is not None and overrides.context_length > trained:
        _log.warning("context_length of %s stays %d: it was trained for no more", model, trained)
    return context_of(overrides, trained)


def _with_defaults(
    model: ServedModel, overrides: ModelOverrides, settings: Settings
) -> ServedModel:
    variables = _thinking(model, overrides) | overrides.chat_template_kwargs
    return replace(
        model,
        defaults=request_defaults(model.recommended, overrides, settings),
        template_kwargs=variables,
        presets={
            name: Preset(
                request_defaults(model.recommended, overrides, settings, name),
                variables | _thinking(model, preset),
            )
            for name, preset in overrides.presets.items()
        },
    )


def _thinking(model: ServedModel, table: PromptOverride) -> dict[str, TemplateValue]:
    """Return template variables for thinking, with the budget for the grammar of thoughts."""
    budget = table.thinking_budget
    style, variables = model.dialect.style, model.template.variables
    kwargs = template_kwargs({}, variables, style, effort=table.reasoning_effort)
    return kwargs if budget is None else {**kwargs, "thinking_budget": budget}
