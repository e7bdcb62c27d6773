"""What the HTTP side knows of the models that are served."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omlx_server.api.families import label_of
from omlx_server.api.http.exchange import afterwards, asks
from omlx_server.api.models import encoders
from omlx_server.api.models.encoders import Role, ServedEmbedder, ServedReranker
from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.window import Overflow
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.model_client import LaneClient
from omlx_server.engine.messages import Counted, State, Status
from omlx_server.engine.pool.entry import Phase, Wanted
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.errors import BadRequest, ModelNotFound
from omlx_server.models.description import Recommended
from omlx_server.text.dialect import Dialect
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.reasoning.constraint import Marks
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

TemplateValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What counts for a field that a request leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 0


def _no_judge() -> ServedReranker:
    raise BadRequest("this model can't judge documents")


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One model and everything that a request to it needs.

    `system_fingerprint` names what computes its answers. `archives` takes prefixes out and in.
    `vocab` bounds token ids. `marks`: the markers of thoughts
    as tokens. `judge` gives its side that ranks documents. `recommended` by its makers; the
    `template_kwargs` are those of requests that send none.
    """

    names: tuple[str, ...]
    system_fingerprint: str
    engine: LaneClient
    archives: PrefixArchives
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    vocab: int
    created: int
    grammars: Grammars
    marks: Marks | None = None
    dialect: Dialect = field(default_factory=Dialect)
    strips_reasoning: bool = False
    overflow: Overflow = field(default_factory=Overflow)
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    judge: Callable[[], ServedReranker] = _no_judge
    recommended: Recommended = field(default_factory=Recommended)
    template_kwargs: Mapping[str, TemplateValue] = field(default_factory=dict)


Served = ServedModel | ServedEmbedder | ServedReranker


@dataclass(frozen=True, slots=True)
class Known:
    """A model that a request may name. `context_length` is None where its files do not tell."""

    role: Role
    names: tuple[str, ...]
    wanted: Wanted
    created: int
    context_length: int | None = None


class Catalogue(Protocol):
    """What there is to be named. The first known one of a role is what a request without a name
    means."""

    @property
    def autoload(self) -> bool: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...

    def known(self) -> Sequence[Known]:
        """As it was seen last."""
        ...

    def meant(self, name: str) -> str:
        """What an alias stands for; any other name is itself."""
        ...

    async def look(self) -> None:
        """Look at the disk again, unless that was a moment ago."""
        ...


class Vitals(Protocol):
    """What the engine says of itself."""

    @property
    def memory(self) -> MemoryReport | None: ...
    @property
    def counted(self) -> Mapping[str, Counted]:
        """What models have counted by name, those that were unloaded as well."""
        ...

    @property
    def cold(self) -> ColdReport | None: ...

    def alive(self, now: float) -> bool: ...


class Kept(Protocol):
    """What is kept of all models, of those that are not loaded as well."""

    async def clear_cold(self, salt: bytes | None) -> None:
        """Forget what the cold tier has, of one salt if given."""
        ...

    async def pinned(self, pin: Pin) -> PinReport:
        """A model has made it: save it."""
        ...

    async def pins(self, salt: bytes) -> list[PinReport]:
        """Those of one tenant, the oldest first."""
        ...

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        """End a pin of that tenant."""
        ...


class ServedModels:
    """From the name in a request to a model that is loaded, and stays until the answer was sent. A
    name that is not known never loads or unloads anything."""

    def __init__(
        self,
        pool: ModelPool[Served],
        catalogue: Catalogue,
        vitals: Vitals,
        kept: Kept,
    ) -> None:
        self.pool = pool
        self.catalogue = catalogue
        self.vitals = vitals
        self.kept = kept
        self.started = False
        self._seen: dict[str, Known] = {}

    def known(self) -> list[Known]:
        """What there is on the disk, and what is loaded though its files are gone."""
        known = list(self.catalogue.known())
        keys = {one.wanted.key for one in known}
        gone = (one for key, one in self._seen.items() if key not in keys)
        return known + [one for one in gone if self._is_loaded(one)]

    def _is_loaded(self, known: Known) -> bool:
        entry = self.pool.entry(known.wanted.key)
        return entry is not None and entry.model is not None

    async def find(self, name: str) -> ServedModel:
        """Raises ModelNotFound with the names there are, BadRequest for a model that can't chat,
        and what ModelPool.acquire raises."""
        return await self.find_or_only(name)

    async def find_or_only(self, name: str | None) -> ServedModel:
        """For clients of servers that have just one: without a name it is the first. Raises as
        `find`."""
        model = await self._take(await self._known(name, encoders.CHAT))
        assert isinstance(model, ServedModel)
        return model

    async def embedder(self, name: str | None) -> ServedEmbedder:
        """Without a name it is the first. Raises as `find`."""
        model = await self._take(await self._known(name, encoders.EMBEDDING))
        assert isinstance(model, ServedEmbedder)
        return model

    async def reranker(self, name: str | None) -> ServedReranker:
        """Without a name it is the first. Raises as `find`."""
        model = await self._take(await self._known(name, encoders.RERANKING))
        if isinstance(model, ServedModel):
            return model.judge()
        assert isinstance(model, ServedReranker)
        return model

    def loaded(self) -> list[ServedModel]:
        """Those that chat and are there now."""
        return [model for model in self.pool.loaded() if isinstance(model, ServedModel)]

    def statuses(self) -> list[Status]:
        """Of those."""
        return [model.engine.status for model in self.loaded()]

    def engines(self) -> list[tuple[str, Status]]:
        """The same with the models' names; at the start with what is about to come."""
        found = [(model.names[0], model.engine.status) for model in self.loaded()]
        first = next((k for k in self.catalogue.known() if k.role is encoders.CHAT), None)
        if not (found or self.started or first is None):
            found.append((first.names[0], Status(State.STARTING, Load(0, 0, 0), time.monotonic())))
        return found

    async def known_as(self, name: str) -> Known:
        """The model of that name, whatever it is for. Raises ModelNotFound."""
        found = await self._sought(lambda: next(iter(self._candidates(name)), None))
        if found is None:
            raise self._unknown(name, "")
        return found

    async def _take(self, known: Known) -> Served:
        """The model, for as long as the exchange lasts."""
        entry = self.pool.entry(known.wanted.key)
        is_there = entry is not None and entry.phase not in (Phase.ABSENT, Phase.FAILED)
        if not (is_there or self.catalogue.autoload):
            raise ModelNotFound(
                f"The model '{known.names[0]}' is not loaded, and models.autoload is off: load it "
                "with `omlx-server load`",
                param="model",
            )
        self._seen[known.wanted.key] = known
        asks(label_of(known.names[0]))
        lease = await self.pool.acquire(known.wanted)
        afterwards(lease.release)
        return lease.model

    async def _known(self, name: str | None, role: Role) -> Known:
        found = await self._sought(lambda: self._of_role(name, role))
        if found is None:
            raise self._missing(name, role)
        return found

    async def _sought(self, find: Callable[[], Known | None]) -> Known | None:
        """What is known, or else what is there now."""
        found = find()
        if found is None:
            await self.catalogue.look()
            found = find()
        return found

    def _of_role(self, name: str | None, role: Role) -> Known | None:
        if name is None:
            return next((k for k in self.catalogue.known() if k.role is role), None)
        return next((k for k in self._candidates(name) if k.role is role), None)

    def _candidates(self, name: str) -> list[Known]:
        """A full name goes before the short name of another one."""
        meant = self.catalogue.meant(name)
        found = [known for known in self.known() if meant in known.names]
        return sorted(found, key=lambda known: known.names[0] != meant)

    def _missing(self, name: str | None, role: Role) -> BadRequest | ModelNotFound:
        names = [n for k in self.catalogue.known() if k.role is role for n in k.names]
        hint = encoders.hint_for(role, names)
        if name is None:
            return BadRequest(f"{role.route} needs {role.noun}. {hint}", param="model")
        roles = list(dict.fromkeys(k.role for k in self._candidates(name)))
        if roles:
            return encoders.for_another_route(name, roles, role, hint)
        return self._unknown(name, hint)

    def _unknown(self, name: str, hint: str) -> ModelNotFound:
        meant = self.catalogue.meant(name)
        why = f": the name stands for '{meant}', which is not here" if meant != name else ""
        return ModelNotFound(
            f"The model '{name[:200]}' does not exist{why}. {hint}".strip(), param="model"
        )
