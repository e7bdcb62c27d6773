"""The HTTP side of a model that chats."""

import functools
import time
from collections.abc import Callable
from functools import partial

from omlx_server.api.chat.shared_ends import strips_reasoning
from omlx_server.api.models.served import ServedModel
from omlx_server.core.window import Overflow
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.model_client import LaneClient
from omlx_server.models.description import describe
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.text.dialect import Dialect, dialect_of
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.reasoning.constraint import Marks
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.encoders import judge
from omlx_server.wiring.overrides import context_length, sampling_defaults

# Characters: where a tokenizer says nothing of how many can fit, only a template that runs away.
_RUNAWAY = 1 << 26


def make_served(
    located: Located,
    engine: LaneClient,
    settings: Settings,
    fingerprint: Callable[[], str],
    system_fingerprint: str,
    tokenizer: Tokenizer,
    vocab: int,
) -> ServedModel:
    """The HTTP side of a model whose logits are `vocab` wide. Its overrides have been checked.
    `fingerprint` of all of its weights is found when it is first asked for; `system_fingerprint`
    names what computes its answers."""
    own = settings.overrides_of(located.names)
    description = describe(located.path)
    context = context_length(located.names[0], description.context_length, own)
    template = ChatTemplate(tokenizer, max_chars=tokenizer.most_chars(context) or _RUNAWAY)
    render = partial(template.render, kwargs=own.chat_template_kwargs)
    parsers = own.tool_parser or "", own.reasoning_parser or ""
    dialect = dialect_of(tokenizer, render, *parsers)
    grammars = Grammars(Vocabulary(tokenizer, vocab))
    return ServedModel(
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
        marks=_marks(dialect, tokenizer, vocab),
        dialect=dialect,
        strips_reasoning=strips_reasoning(render),
        overflow=Overflow(settings.context.overflow, settings.context.low_water),
        defaults=sampling_defaults(description.recommended, own, settings),
        recommended=description.recommended,
        template_kwargs=own.chat_template_kwargs,
        judge=functools.cache(lambda: judge(located, engine, tokenizer)),
    )


def _marks(dialect: Dialect, tokenizer: Tokenizer, width: int) -> Marks | None:
    if dialect.style is None:
        return None
    return Marks(dialect.style, tokenizer, width, starts=dialect.thinks)
