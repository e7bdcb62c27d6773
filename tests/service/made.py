"""Services to look at, and a runner that only writes down what it was asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from omlx_server.service.account import Account
from omlx_server.service.environment import Environment
from omlx_server.service.service import Service, service_of
from omlx_server.service.steps import Outcome
from omlx_server.settings import Loaded, load
from tests.api.conftest import CHATML
from tests.text import makers
from tests.tiny_models import save_tiny

HOME = Path("/home/ann")
KEY = "sk-very-secret"
ROLE = Account("_omlx", Path("/var/db/omlx_server"), is_ours=True, exists=True, platform="darwin")
OMLX = Account("omlx", Path("/var/lib/omlx_server"), is_ours=True, exists=True, platform="linux")
ANN = Account("ann", HOME, is_ours=False, exists=True)
NOTHING = Environment()


def loaded(config: Path, text: str = "") -> Loaded:
    """The settings of a config file with this text."""
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(text, encoding="utf-8")
    return load(config, {}, MappingProxyType({}))


def made(
    given: Loaded,
    home: Path = HOME,
    python: str = "/opt/omlx/bin/python",
    environment: Environment = NOTHING,
) -> Service:
    return service_of(
        given, python=Path(python), home=home, log_dir=home / "logs", environment=environment
    )


def save_small(path: Path) -> None:
    """A model of about a millisecond a token, with a tokenizer."""
    makers.save(path, "byte_level", CHATML)
    save_tiny(path, "llama", vocab_size=makers.FAMILIES["byte_level"]().get_vocab_size())


@dataclass
class Recorder:
    """Answers by the first words of a command, and else with success."""

    answers: dict[tuple[str, ...], list[Outcome]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    pauses: int = 0

    def __call__(self, command: Sequence[str]) -> Outcome:
        self.commands.append(" ".join(command))
        for words, outcomes in self.answers.items():
            if tuple(command[: len(words)]) == words:
                return outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        return Outcome(0)

    def pause(self, _seconds: float) -> None:
        self.pauses += 1
