"""How each peer's server is started, as its users would, with one thread to compute."""

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from scripts.benchmarks import environment, peer_environment, peer_weights
from scripts.benchmarks.http_system import HttpSystem
from scripts.benchmarks.peer_pins import LLAMA_CPP, VLLM_MLX
from scripts.benchmarks.process import Child
from scripts.benchmarks.traffic import TIMEOUT_SECONDS, Endpoint

_SLOTS = 8  # as many as requests ever run at once
_CONTEXT_STEP = 256  # llama.cpp's own


@dataclass(frozen=True, slots=True)
class Launch:
    """What a peer is to serve. `folder` takes its log; no sequence is longer than `tokens`."""

    model: Path
    folder: Path
    tokens: int


def start_mlx_lm(launch: Launch, *options: str) -> HttpSystem:
    """With its default settings but for these options."""
    port = _free_port()
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(launch.model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING", *options]
    log = launch.folder / f"mlx_lm.server{_marked(options)}.log"
    child = Child(command, environment.with_fast_blas(), log)
    return _system("mlx_lm", child, port, "default_model")


def start_vllm_mlx(launch: Launch) -> HttpSystem:
    """With continuous batching, without which it answers one at a time; its prefix cache is on."""
    port = _free_port()
    command = [str(peer_environment.program(VLLM_MLX, "vllm-mlx")), "serve", str(launch.model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    command += ["--continuous-batching", "--enable-prefix-cache", "--offline"]
    command += ["--timeout", str(TIMEOUT_SECONDS)]
    # It writes its cache into the home directory when it ends, and starts with what is there.
    env = {**environment.with_fast_blas(), "HOME": str(launch.folder)}
    child = Child(command, env, launch.folder / "vllm-mlx.log")
    return _system("vllm_mlx", child, port, "model")


def start_llama_cpp(launch: Launch, *options: str) -> HttpSystem:
    """With 8 slots; each has room for the longest sequence and a bit. `options` come on top."""
    port = _free_port()
    room = (launch.tokens // _CONTEXT_STEP + 1) * _CONTEXT_STEP
    command = [str(peer_environment.program(LLAMA_CPP, "llama-server"))]
    command += ["--model", str(peer_weights.GGUF), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", str(_SLOTS), "--ctx-size", str(_SLOTS * room), "--threads", "1"]
    log = launch.folder / f"llama.cpp{_marked(options)}.log"
    child = Child([*command, *options], environment.clean(), log)
    return _system("llama_cpp", child, port, "model", ignore_eos=True)


def _system(name: str, child: Child, port: int, model: str, **endless: object) -> HttpSystem:
    endpoint = Endpoint(f"http://127.0.0.1:{port}", model)
    return HttpSystem(name, child, lambda _: endpoint if _is_healthy(endpoint) else None, **endless)


def _marked(options: tuple[str, ...]) -> str:
    """So that a server with options and one without have logs of their own."""
    return options[0] if options else ""


def _is_healthy(endpoint: Endpoint) -> bool:
    try:
        return httpx.get(f"{endpoint.url}/health", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
