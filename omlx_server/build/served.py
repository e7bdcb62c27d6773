"""The HTTP side of a model that chats."""

import functools
import time
from collections.abc import Callable

from omlx_server.api.marks import strips_reasoning
from omlx_server.api.served import SamplingDefaults, ServedModel
from omlx_server.build.engine import notes_of
from omlx_server.compute.fingerprint import fingerprint
from omlx_server.core.window import Overflow
from omlx_server.engine.archives import PrefixArchives
from omlx_server.engine.client import AsyncEngine
from omlx_server.models.description import Description, describe
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.text.dialect import Dialect, dialect_of
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.reasoning.constraint import Marks
from omlx_server.text.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer


def make_served(located: Located, engine: AsyncEngine, settings: Settings) -> ServedModel:
    """The HTTP side of a model."""
    description = describe(located.path)
    tokenizer = Tokenizer.load(located.path)
    longest = max(len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size))
    template = ChatTemplate(tokenizer, max_chars=description.context_length * longest)
    dialect = dialect_of(tokenizer, template.render)
    grammars = Grammars(Vocabulary(tokenizer, description.vocab))
    return ServedModel(
        names=located.names,
        engine=engine,
        archives=PrefixArchives(engine, located.names[0], _whole_fingerprint(located, settings)),
        tokenizer=tokenizer,
        template=template,
        context_length=description.context_length,
        longest_token=longest,
        vocab=min(description.vocab, tokenizer.vocab_size),
        created=int(time.time()),
        grammars=grammars,
        marks=_marks(dialect, tokenizer, description.vocab),
        dialect=dialect,
        strips_reasoning=strips_reasoning(template.render),
        overflow=Overflow(settings.context.overflow, settings.context.low_water),
        defaults=_defaults(description, settings),
    )


def _marks(dialect: Dialect, tokenizer: Tokenizer, width: int) -> Marks | None:
    if dialect.style is None:
        return None
    return Marks(dialect.style, tokenizer, width, starts=dialect.thinks)


def _whole_fingerprint(located: Located, settings: Settings) -> Callable[[], str]:
    """Found when it is first asked for."""
    return functools.cache(lambda: fingerprint(located.path, notes_of(settings), whole=True))


def _defaults(description: Description, settings: Settings) -> SamplingDefaults:
    recommended = description.recommended
    own = SamplingDefaults(max_tokens=settings.sampling.max_tokens)
    return SamplingDefaults(
        temperature=_or(recommended.temperature, own.temperature),
        top_p=_or(recommended.top_p, own.top_p),
        top_k=int(_or(recommended.top_k, own.top_k)),
        min_p=_or(recommended.min_p, own.min_p),
        repetition_penalty=_or(recommended.repetition_penalty, own.repetition_penalty),
        max_tokens=own.max_tokens,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
