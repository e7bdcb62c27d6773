"""What the HTTP side knows of the models that are served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from omlx_server.api import readers
from omlx_server.api.readers import Readers, Role, ServedEmbedder, ServedReranker
from omlx_server.core.window import Overflow
from omlx_server.engine.archives import PrefixArchives
from omlx_server.engine.client import AsyncEngine
from omlx_server.errors import BadRequest, ModelNotFound
from omlx_server.text.dialect import Dialect
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.reasoning.constraint import Marks
from omlx_server.text.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What counts for a field that a request leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One model and everything that a request to it needs.

    `archives` takes prefixes out and in. `vocab` bounds token ids; `longest_token` is the most
    characters that one token can stand for. `marks`: the markers of thoughts as tokens.
    """

    names: tuple[str, ...]
    engine: AsyncEngine
    archives: PrefixArchives
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    longest_token: int
    vocab: int
    created: int
    grammars: Grammars
    marks: Marks | None = None
    dialect: Dialect = field(default_factory=Dialect)
    strips_reasoning: bool = False
    overflow: Overflow = field(default_factory=Overflow)
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)

    @property
    def max_prompt_chars(self) -> int:
        """A prompt of more characters can't fit the context, however well it tokenizes."""
        return self.context_length * self.longest_token


class ServedModels:
    """A fixed map from names to models. A name that is not in it never loads anything. `readers`
    are those that do not write."""

    def __init__(self, models: Sequence[ServedModel], others: Readers | None = None) -> None:
        self._by_name = {name: model for model in models for name in model.names}
        self.readers = others or Readers()

    def find(self, name: str) -> ServedModel:
        """Raises ModelNotFound with the names there are, BadRequest for a model that can't chat."""
        return self._find(name, self._by_name, readers.CHAT)

    def embedder(self, name: str | None) -> ServedEmbedder:
        """Without a name it is the first. Raises as `find`."""
        return self._find(name, self.readers.embedders, readers.EMBEDDING)

    def reranker(self, name: str | None) -> ServedReranker:
        """Without a name it is the first. Raises as `find`."""
        return self._find(name, self.readers.rerankers, readers.RERANKING)

    def find_or_only(self, name: str | None) -> ServedModel:
        """For clients of servers that have just one: without a name it is the first."""
        return self.all()[0] if name is None else self.find(name)

    def _find(self, name: str | None, models: Mapping[str, M], role: Role) -> M:
        hint = readers.hint_for(role, list(models))
        if name is None and not models:
            raise BadRequest(f"{role.route} needs {role.noun}. {hint}", param="model")
        wanted = next(iter(models)) if name is None else name
        if wanted in models:
            return models[wanted]
        roles = [readers.CHAT] if wanted in self._by_name else []
        roles += self.readers.roles(wanted)
        if roles:
            raise readers.for_another_route(wanted, roles, role, hint)
        raise ModelNotFound(f"The model '{wanted[:200]}' does not exist. {hint}", param="model")

    def items(self) -> list[tuple[str, ServedModel]]:
        return list(self._by_name.items())

    def all(self) -> list[ServedModel]:
        """Each model once, whatever names it has."""
        return list({id(model): model for model in self._by_name.values()}.values())

    def engines(self) -> list[AsyncEngine]:
        return list({id(m.engine): m.engine for m in self._by_name.values()}.values())
