"""Every architecture of the pinned mlx-lm, served over HTTP and compared with mlx-lm itself.

A tiny random model of each, in float32, greedy: texts and log-probabilities of what the server
answers (alone, out of the cache, beside others, after a restart, after evictions) against those of
mlx-lm's own caches, which read each prompt in one pass and know of nobody else.
"""

import hashlib
import json
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.kv import dispatch
from omlx_server.compute.payload import BlockCodec
from omlx_server.text.tokenizer import Tokenizer
from tests.api.conftest import CHATML
from tests.api.harness import Json, ServerProcess
from tests.architectures.configs import CANNOT_BUILD, CONFIGS
from tests.architectures.table import METAL_ONLY
from tests.arrays import plain
from tests.text import makers
from tests.tiny_models import VOCAB, save_tiny

TOLERANCE = 1e-3
"""Of a log-probability: other shapes of a matrix product round otherwise, by some 1e-5."""
ONE_PASS = frozenset({"phi3small"})
"""What mlx-lm computes of their prompts depends on its passes: only prompts of one are asked."""
SNAPPING = frozenset({"deepseek_v41", "deepseek_v41+each_token"})
"""They round keys to fp8 and fp4, so a last bit that differs by the pass may become a whole step of
those formats: right is what mlx-lm gives in any of the passes of `_PASSES`."""
REFUSED = frozenset({*METAL_ONLY, *CANNOT_BUILD})
"""What mlx-lm can't serve, at all or without Metal."""
_TIE = 1e-4
_BLOCK = 16
_TOKENS = 16
_STEM = 90
_FIRST = "llama"
_CHUNK = 64
_PASSES = (_CHUNK, _BLOCK)
_SETTINGS = (
    f"cache.block_tokens={_BLOCK}",
    f"scheduler.prefill_chunk_tokens={_CHUNK}",
    "models.max_loaded=2",
    "memory.limit=4GB",
)


@dataclass(slots=True)
class Row:
    """What became of one architecture. `problem`: why it does not load. `alone`: why its rows share
    no batch. `reused` of `known` prompt tokens came from the cache. `worst`: the largest difference
    of a log-probability; `ties`: texts that part where two tokens are equally likely."""

    name: str
    problem: str = ""
    alone: str = ""
    reuse: str = ""
    answers: int = 0
    ties: int = 0
    reused: int = 0
    known: int = 0
    worst: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Of one that mlx-lm itself can't serve here: that it is refused in one line."""
        if self.name in REFUSED:
            return self.problem.startswith("the model ") and "\n" not in self.problem
        return self.answers > 0 and not self.wrong and not self.problem


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy token ids, their log-probabilities, and how far the second likeliest was behind."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]


class Oracle:
    """mlx-lm alone, on the same weights. All prompts begin with a part of a stem."""

    stem_tokens = _STEM

    def __init__(self, model: nn.Module, tokenizer: Tokenizer) -> None:
        dispatch.install()
        self.model = model
        self.tokenizer = tokenizer
        self._answers: dict[tuple[tuple[int, ...], int], Answer] = {}

    def words(self, seed: str, count: int) -> tuple[int, ...]:
        dice = random.Random(hashlib.sha256(seed.encode()).digest())
        return tuple(dice.randrange(1, VOCAB) for _ in range(count))

    def answer(self, prompt: Sequence[int], tokens: int = 0) -> Answer:
        """Of a prompt that is read in passes of so many tokens. 0: in one."""
        key = (tuple(prompt), tokens)
        if key not in self._answers:
            self._answers[key] = self._compute(prompt, tokens or len(prompt))
        return self._answers[key]

    def _compute(self, prompt: Sequence[int], tokens: int) -> Answer:
        cache = self.read(prompt[:-1], tokens)
        ids, logprobs, leads, last = list[int](), [], [], prompt[-1]
        for _ in range(_TOKENS):
            logits = self.model(mx.array([[last]]), cache=cache)[0, -1].astype(mx.float32)
            likely = mx.sort(logits - mx.logsumexp(logits))[-2:]
            second, first = plain(likely)
            last = plain(mx.argmax(logits))
            ids.append(last)
            logprobs.append(first)
            leads.append(first - second)
        return Answer(tuple(ids), tuple(logprobs), tuple(leads))

    def read(self, body: Sequence[int], tokens: int, cache: Any = None) -> Any:
        """Caches of a prompt that is read in passes of so many tokens."""
        cache = cache or make_prompt_cache(self.model)
        for begin in range(0, len(body), tokens):
            self.model(mx.array([body[begin : begin + tokens]]), cache=cache)
            mx.eval([c.state for c in cache])
        return cache


def save(directory: Path, name: str) -> None:
    """The model and a tokenizer as `directory/org/<name>`."""
    path = makers.save(directory / "org" / _file(name), "byte_level", CHATML)
    (path / "tokenizer.json").write_text(_letters().to_str(), encoding="utf-8")
    save_tiny(path, "llama" if name in CANNOT_BUILD else name)
    if name in CANNOT_BUILD:
        (path / "config.json").write_text(json.dumps({"model_type": name}), encoding="utf-8")


def _letters() -> Backend:
    """Every id of the models is two letters, so that a text tells which tokens it is made of."""
    pairs = [a + b for a in string.ascii_letters for b in "abcd"][:VOCAB]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab = {piece: number for number, piece in enumerate([*pairs, *sorted(alphabet)])}
    backend = Backend(tokenizer_models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(makers.CHATML_SPECIALS)
    return backend


def campaign(names: Iterable[str], directory: Path) -> Iterator[Row]:
    """A row for each, as soon as it is known, then again with what came after a restart."""
    models = directory / "models"
    rows = {name: Row(name) for name in names}
    for name in (*rows, _FIRST):
        save(models, name)
    first = [*_SETTINGS, f"models.dirs={models}"]
    with serving_all(directory / "server", first) as server:
        for row in rows.values():
            _ask_or_see_refused(server, row, models, _sequential(row.name), _together(row.name))
            yield row
    # Blocks of one prompt or two fit into the memory: what is asked again is read from files.
    small = [*first, "cache.hot_cache_max_bytes=200KB", "memory.activation_reserve=64MB"]
    with serving_all(directory / "server", small) as server:
        for row in rows.values():
            if not row.problem:
                restarted, together = _restarted(row.name), _together(row.name, 4)
                _ask_or_see_refused(server, row, models, restarted, together)
                yield row


@contextmanager
def serving_all(
    directory: Path, settings: Sequence[str], model: str = f"org/{_FIRST}"
) -> Iterator[ServerProcess]:
    """A server that finds all of the models. Its log may tell of failures: rows do as well."""
    server = ServerProcess(model, directory, settings)
    try:
        server.wait_ready()
        yield server
        server.terminate()
        server.wait()
    finally:
        server.kill()


def _ask_or_see_refused(
    server: ServerProcess,
    row: Row,
    models: Path,
    sequential: "Sequence[Prompt]",
    together: "Sequence[Prompt]",
) -> None:
    if row.name in REFUSED:
        row.problem = _refusal(server, row.name)
        return
    path = models / "org" / _file(row.name)
    oracle = Oracle(load_model(path)[0], Tokenizer.load(path))
    if row.name in ONE_PASS:
        sequential, together = map(_of_one_pass, (sequential, together))
    ask_all(server, row, oracle, sequential, together, model=f"org/{_file(row.name)}")


def ask_all(
    server: ServerProcess,
    row: Row,
    oracle: Oracle,
    sequential: "Sequence[Prompt]",
    together: "Sequence[Prompt]",
    **fields: str,
) -> None:
    """Ask and judge all prompts, with these fields of requests: first one by one."""
    row.alone = cache_ops.why_alone(oracle.model)
    codec = BlockCodec.of(oracle.model, _BLOCK)
    row.reuse = "none" if codec is None else "checkpoints" if codec.layout.checkpointed else "all"
    for prompt in sequential:
        _judge(row, oracle, prompt, _ask(server, prompt.tokens(oracle), **fields))
        if row.problem:
            return
    with ThreadPoolExecutor(8) as pool:
        asked = [(prompt, prompt.tokens(oracle)) for prompt in together]
        answers = pool.map(lambda pair: _ask(server, pair[1], **fields), asked)
        for (prompt, _), answer in zip(asked, answers, strict=True):
            _judge(row, oracle, prompt, answer)


# -- prompts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """`said` tokens of a stem, all of it and `answered` tokens of its answer where that is not 0,
    then `own` tokens that nobody else has."""

    name: str
    said: int = 0
    own: int = 0
    answered: int = 0

    def tokens(self, oracle: Oracle) -> tuple[int, ...]:
        stem = oracle.words(f"{self.name}-stem", oracle.stem_tokens)
        answer = oracle.answer(stem).ids[: self.answered] if self.answered else ()
        return (*stem[: self.said], *answer, *oracle.words(str(self), self.own))


def _of_one_pass(prompts: Sequence[Prompt]) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.said + prompt.answered + prompt.own <= _CHUNK]


def _sequential(name: str) -> list[Prompt]:
    """Cold ones, then what hits them: whole, longer, parted, the next turn of a conversation."""
    shapes = [(_STEM, 0), (0, 1), (0, 17), (_STEM, 0), (_STEM, 5), (64, 20), (70, 3), (33, 40)]
    turns = [Prompt(name, _STEM, 9, answered=_TOKENS), Prompt(name, _STEM, 4, answered=10)]
    return [*(Prompt(name, said, own) for said, own in shapes), *turns]


def _together(name: str, count: int = 10) -> list[Prompt]:
    """Strangers of all lengths, a single token among them, beside prompts that hit."""
    shapes = [(0, 1), (_STEM, 30), (0, 140), (80, 12), (0, 2), (0, 61), (_STEM, 1), (0, 33)]
    return [Prompt(name, said, own) for said, own in [*shapes, (48, 7), (0, 100)][:count]]


def _restarted(name: str) -> list[Prompt]:
    strangers = [Prompt(name, 0, 200 + n) for n in range(2)]
    again = [Prompt(name, _STEM, 6), Prompt(name, _STEM, 3, answered=_TOKENS), Prompt(name, 50, 8)]
    return [*again, *strangers, Prompt(name, _STEM, 11)]


# -- asking and judging --------------------------------------------------------------------


def _ask(server: ServerProcess, prompt: Sequence[int], **fields: str) -> Json:
    body = {
        **fields,
        "prompt": list(prompt),
        "max_tokens": _TOKENS,
        "temperature": 0,
        "logprobs": 1,
        "ignore_eos": True,
    }
    response = server.http.post(f"{server.url}/v1/completions", json=body, timeout=900)
    answer: Json = response.json()
    return answer


def _refusal(server: ServerProcess, name: str) -> str:
    answer = _ask(server, (1, 2, 3), model=f"org/{_file(name)}")
    return str(answer["error"]["message"]) if "error" in answer else ""


def _judge(row: Row, oracle: Oracle, prompt: Prompt, answer: Json) -> None:
    if "error" in answer:
        row.problem = row.problem or str(answer["error"]["message"])
        return
    row.answers += 1
    details = answer["usage"]["prompt_tokens_details"]
    row.reused += details["cached_tokens"]
    row.known += prompt.said + prompt.answered if row.answers > 1 else 0
    passes = (0, *(_PASSES if row.name in SNAPPING else ()))
    expected = [oracle.answer(prompt.tokens(oracle), tokens) for tokens in passes]
    compared = [_compare(answer["choices"][0], right, oracle.tokenizer) for right in expected]
    best = next((one for one in compared if one.is_right), compared[0])
    row.worst = max(row.worst, best.off)
    row.ties += best.tie
    if not best.is_right:
        row.wrong.append(f"{prompt}: from token {best.parted}, off by {best.off:.5f}")


@dataclass(frozen=True, slots=True)
class _Compared:
    """The texts are the same up to token `parted`, and their log-probabilities at most `off`.
    `tie`: they part where two tokens are equally likely."""

    parted: int
    off: float
    tie: bool

    @property
    def is_right(self) -> bool:
        return (self.parted == _TOKENS or self.tie) and self.off <= TOLERANCE


def _compare(choice: Json, expected: Answer, tokenizer: Tokenizer) -> _Compared:
    given = choice["logprobs"]["token_logprobs"]
    right = [tokenizer.token_text(id) for id in expected.ids]
    parted = _parted(choice["logprobs"]["tokens"], right)
    pairs = zip(given[:parted], expected.logprobs, strict=False)
    off = max((abs(mine - other) for mine, other in pairs), default=0.0)
    return _Compared(parted, off, parted < _TOKENS and expected.leads[parted] < _TIE)


def _parted(given: Sequence[str], expected: Sequence[str]) -> int:
    """How many tokens are the same from the beginning."""
    pairs = enumerate(zip(given, expected, strict=False))
    return next(
        (at for at, (mine, right) in pairs if mine != right), min(len(given), len(expected))
    )


# -- the page -----------------------------------------------------------------------------

ALL = (*sorted(CONFIGS), *sorted(REFUSED))
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
_BEGIN, _END = "<!-- made by scripts/campaign architectures -->", "<!-- end -->"
_REUSE = {
    "all": "every token",
    "checkpoints": "at checkpoints",
    "none": "none: mlx-lm lets its tokens see those behind them in the same pass",
}


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    head = [
        f"mlx-lm {version('mlx-lm')}",
        "",
        "| architecture | in one batch | reuse | right answers | largest difference |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    return "\n".join([*head, *map(_line, rows)])


def _line(row: Row) -> str:
    if row.problem:
        why = row.problem.partition(f"/{_file(row.name)}: ")[2]
        return f"| {row.name} | not served: {why} | | | |"
    together = f"no: {row.alone}" if row.alone else "yes"
    right = f"{row.answers - len(row.wrong)} of {row.answers}"
    return f"| {row.name} | {together} | {_REUSE[row.reuse]} | {right} | {row.worst:.0e} |"


def write(rows: Iterable[Row], page: Path = PAGE) -> None:
    """Put the table in its place on the page."""
    text = page.read_text(encoding="utf-8")
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}\n{table(rows)}\n{_END}{after}", encoding="utf-8")


def written(page: Path = PAGE) -> tuple[str, list[list[str]]]:
    """The version of mlx-lm that the page is about, and the cells of its rows."""
    text = page.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
    lines = text.strip().splitlines()
    return lines[0], [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]


def _file(name: str) -> str:
    return name.replace("+", "--")
