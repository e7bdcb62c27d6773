"""What the HTTP side knows of the models that are served."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from omlx_server.engine.archives import PrefixArchives
from omlx_server.engine.client import AsyncEngine
from omlx_server.errors import ModelNotFound
from omlx_server.text.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer


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
    characters that one token can stand for.
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
    strips_reasoning: bool = False
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)

    @property
    def max_prompt_chars(self) -> int:
        """A prompt of more characters can't fit the context, however well it tokenizes."""
        return self.context_length * self.longest_token


class ServedModels:
    """A fixed map from names to models. A name that is not in it never loads anything."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_name = {name: model for model in models for name in model.names}

    def find(self, name: str) -> ServedModel:
        """Raises ModelNotFound with the names there are."""
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(sorted(self._by_name))
            raise ModelNotFound(
                f"The model '{name[:200]}' does not exist. This server has: {known}", param="model"
            )
        return model

    def find_or_only(self, name: str | None) -> ServedModel:
        """For clients of servers that have just one: without a name it is the first."""
        return self.all()[0] if name is None else self.find(name)

    def items(self) -> list[tuple[str, ServedModel]]:
        return list(self._by_name.items())

    def all(self) -> list[ServedModel]:
        """Each model once, whatever names it has."""
        return list({id(model): model for model in self._by_name.values()}.values())

    def engines(self) -> list[AsyncEngine]:
        return list({id(m.engine): m.engine for m in self._by_name.values()}.values())
