"""The model under test, loaded as `serve` would load it, but with a temporary cold tier, and
prompts for it: sentences of random words. No two prompts begin alike by chance."""

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.work import finish
from omlx_server.doctor.finding import in_words
from omlx_server.doctor.selftest.session import Session
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import LoadFailed, ModelUnavailable, OmlxError
from omlx_server.models import catalogue
from omlx_server.models.description import described
from omlx_server.models.hub.names import hub_name
from omlx_server.models.layout import weight_bytes
from omlx_server.models.locate import Located, find_here, unknown
from omlx_server.settings import Settings
from omlx_server.settings.types import Secret
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.draft_model import draft_model_for, draft_model_name
from omlx_server.wiring.encoders import refuse_to_chat
from omlx_server.wiring.model_directory import find_model_here
from omlx_server.wiring.model_factory import InstanceFactory, limits

_WHO = ("miller", "sailor", "baker", "teacher", "farmer", "painter", "doctor", "child")
_HOW = ("old", "quiet", "clever", "tired", "young", "careful", "cheerful", "proud")
_DOES = ("carries", "finds", "paints", "repairs", "sells", "hides", "borrows", "describes")
_WHAT = ("lantern", "letter", "basket", "violin", "clock", "bridge", "garden", "kettle")
_WHERE = ("harbour", "market", "forest", "village", "station", "library", "river", "kitchen")
_CLOSE_SECONDS = 5.0
# Files in the cold tier's directory (wiring/model_factory.py).
_NOTES = ("steps.json", "fingerprints.json")


class Prompts:
    """Makes prompts of a model's own tokens, the same on every machine for one `seed`. `vocab` is
    the number of its logits."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self.random = random.Random(seed)

    def tokens(self, count: int) -> tuple[int, ...]:
        tokens: list[int] = []
        while len(tokens) < count:
            ids = [id for id in self._tokenizer.encode(self._sentence()) if id < self._vocab]
            tokens += ids or [self.random.randrange(self._vocab)]
        return tuple(tokens[:count])

    def _sentence(self) -> str:
        who, how, does, what, where = map(self.random.choice, (_WHO, _HOW, _DOES, _WHAT, _WHERE))
        number = self.random.randrange(2, 1000)
        return f"The {how} {who} {does} the {what} number {number} near the {where}. "


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The loaded model and its tools. `context` is the length in tokens that its files name."""

    located: Located
    settings: Settings
    session: Session
    prompts: Prompts
    load_seconds: float
    context: int
    seed: int

    @property
    def instance(self) -> ModelInstance:
        return self.session.instance

    @property
    def loaded(self) -> LoadedModel:
        return self.instance.runner.loaded

    @property
    def most_rows(self) -> int:
        """The most rows that decode together."""
        runner = self.instance.runner
        return limits(self.settings, self.located.names).max_batch_size if runner.batchable else 1

    def tokens(self, count: int) -> int:
        """Return `count`, or half of the model's context if that is less."""
        return min(count, self.context // 2)


def find_subject(name: str, settings: Settings) -> Located:
    """Return the model that `name` means, without a download. Raises ModelUnavailable."""
    name = settings.models.resolve_alias(name)
    located = find_model_here(name, settings)
    if located is None:
        raise _not_here(name, settings)
    refuse_to_chat(located)
    return located


@contextmanager
def opened(located: Located, settings: Settings, seed: int) -> Iterator[Subject]:
    """Load a model, and free it at the end. Raises ModelUnavailable for its draft model,
    LoadFailed, and OmlxError if the memory is too small."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="omlx-doctor-", ignore_cleanup_errors=True)
        settings = _apart(settings, Path(stack.enter_context(temporary)) / "kv")
        factory = InstanceFactory(settings)
        stack.callback(factory.close, _CLOSE_SECONDS)
        begun = time.perf_counter()
        tokenizer = Tokenizer.load(located.path)
        instance = _loaded(factory, located, tokenizer)
        stack.callback(instance.leave)
        loaded, about = instance.runner.loaded, described(located.path)
        yield Subject(
            located,
            settings,
            Session(instance),
            Prompts(tokenizer, loaded.dims.vocab, seed),
            time.perf_counter() - begun,
            about.context_length if about else 1 << 15,
            seed,
        )


def _not_here(name: str, settings: Settings) -> ModelUnavailable:
    if catalogue.find(name) is None and hub_name(name) is None:
        return unknown(name, settings.models)
    return ModelUnavailable(f"{name} is not here yet", hint=f"omlx-server pull {name}")


def _apart(settings: Settings, directory: Path) -> Settings:
    """Return the settings with the cold tier in this directory and no remote store. The user's
    notes on models are copied, so that the plans are those of the server."""
    if settings.cache.has_cold:
        directory.mkdir(mode=0o700)
        for name in _NOTES:
            with suppress(OSError):
                shutil.copy(settings.cache.cold_dir / name, directory)
    unbounded = {"cold_min_free_disk": 0, "cold_writes_per_day": 0}
    cache = replace(settings.cache, cold_dir=directory, remote=Secret(), **unbounded)
    return replace(settings, cache=cache)


def _loaded(factory: InstanceFactory, located: Located, tokenizer: Tokenizer) -> ModelInstance:
    drafter = _draft_model(located, tokenizer, factory.settings)
    models = [located, drafter] if drafter is not None else [located]
    nbytes = sum(weight_bytes(model.path) for model in models)
    limit = factory.shares.limit
    if nbytes > limit:
        raise OmlxError(
            f"the weights take {in_words(nbytes)}, and memory.limit is {in_words(limit)}",
            hint="a smaller or more quantised model, or a higher memory.limit",
        )
    pair = (drafter, factory.fingerprint(drafter)) if drafter is not None else None
    instance = guarded(finish, factory.making(located, nbytes, drafter=pair))
    if isinstance(instance, Crash):
        if isinstance(instance.error, OmlxError):
            raise instance.error
        raise LoadFailed(
            f"{located.names[0]} can't be loaded: {instance.reason}"
        ) from instance.error
    return instance


def _draft_model(located: Located, tokenizer: Tokenizer, settings: Settings) -> Located | None:
    name = settings.models.resolve_alias(draft_model_name(located, settings))
    if not name:
        return None
    if find_here(name, settings.models) is None:
        raise _not_here(name, settings)
    return draft_model_for(located, tokenizer, settings, strict=True)
