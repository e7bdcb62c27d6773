"""The servers that ours can be measured beside, and which of them were asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import UsageError
from scripts.benchmarks import peer_environment, peer_servers, peer_weights
from scripts.benchmarks.http_system import HttpSystem
from scripts.benchmarks.peer_pins import LLAMA_CPP, VLLM_MLX, Pins


@dataclass(frozen=True, slots=True)
class Peer:
    """`start` takes a launch, and then options of the server where those of its users are not the
    only ones measured. `pins`: what is installed for it; None where our own environment has it.
    With `only_gguf` it reads no MLX directories: it has the starter model's weights, and no
    one-layer model."""

    name: str
    start: Callable[..., HttpSystem]
    pins: Pins | None = None
    only_gguf: bool = False

    @property
    def version(self) -> str:
        return self.pins.version if self.pins else version("mlx-lm")


PEERS = (
    Peer("mlx_lm", peer_servers.start_mlx_lm),
    Peer("vllm_mlx", peer_servers.start_vllm_mlx, VLLM_MLX),
    Peer("llama_cpp", peer_servers.start_llama_cpp, LLAMA_CPP, only_gguf=True),
)
NAMES = tuple(peer.name for peer in PEERS)


def choose(words: str, among: Sequence[str] = NAMES) -> tuple[Peer, ...]:
    """What --peers asks for, in the order of the tables. Raises UsageError."""
    names = [word.strip() for word in words.split(",")]
    if names == ["none"]:
        return ()
    if names == ["all"]:
        names = list(among)
    unknown = [name for name in names if name not in among]
    if unknown:
        hint = f"some of {', '.join(among)}, or all, or none"
        raise UsageError(f"--peers: there is no peer {unknown[0]!r}", hint=hint)
    return tuple(peer for peer in PEERS if peer.name in names)


def check_model(chosen: Sequence[Peer], model: Path) -> None:
    """Raises UsageError when one of them can't have this model's weights."""
    for peer in chosen:
        if peer.only_gguf and not peer_weights.is_of(model):
            others = ",".join(peer.name for peer in chosen if not peer.only_gguf)
            raise UsageError(
                f"--peers {peer.name}: it is compared on the starter model only, not {model.name}",
                hint=f"--peers {others or 'none'}",
            )


def install(chosen: Sequence[Peer]) -> None:
    """What they need and is not there yet. Raises OmlxError."""
    for peer in chosen:
        if peer.pins:
            peer_environment.ensure(peer.pins)
        if peer.only_gguf:
            with open_display() as display:
                peer_weights.ensure(display)


def versions(chosen: Sequence[Peer]) -> Mapping[str, str]:
    return {peer.name: peer.version for peer in chosen}
