"""Runs like those of the oracle suite, of every cache class, KV format, drafter and encoder, in the
dtypes that models come in. They are looked at, not judged: the other tests say what is right.

As a program it traces a share of them, `NUMBER OF_SHARES`, and prints what it has seen as JSON.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.architectures.pair import Headed
from omlx_server.compute.attention.all_to_all import attend
from omlx_server.compute.embed.yes_no import score
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel, load, loading
from omlx_server.compute.model.pairing import paired
from omlx_server.compute.planning.calibrate import calibrating
from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.compute.planning.probe import filled_caches, one_token_caches
from omlx_server.compute.planning.step_costs import forward_of_heads, measuring_step_costs
from omlx_server.compute.score import score_prompt
from omlx_server.compute.vision.image_forward import ImageForward
from omlx_server.compute.vision.rope import shifted_by
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import FinishReason
from omlx_server.core.work import finish
from tests.adapters import save_adapter
from tests.compute import cold_cache
from tests.compute.drive import ROOMY, Drive, sampling
from tests.compute.embed import tiny
from tests.compute.embed.loading import collect, load_cross_encoder, load_embedder
from tests.compute.experts.on_disk import loaded_on_disk
from tests.compute.headed import add, as_trained, experts_apart, headed, random_heads
from tests.compute.kv.every_scheme import FOUR_BITS, SCHEMES
from tests.compute.kv.models import quantised
from tests.compute.portable.trace import Trace
from tests.compute.referring import SIZE, Referring
from tests.compute.templates import Template, form
from tests.compute.vision.seeing import MODELS, in_chunks, loaded
from tests.compute.warm_runs import LIMITS, tokens
from tests.tiny_models import CONFIGS, VOCAB, load_tiny, make_model, save_tiny

Run = Callable[[], object]

_HEAD = tokens("head", 26)
_REPEATING = [*_HEAD, *tokens("piece", 4) * 3]
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "seed": 1, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.7, "seed": 2, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.7, "seed": 3, "top_p": 0.8},
    {"presence_penalty": 0.5, "logit_bias": ((3, 4.0), (5, -2.0)), "top_logprobs": 3},
    {"min_tokens": 3, "stop_ids": frozenset({1, 2, 3}), "top_logprobs": 0},
)


def runs() -> Iterator[Run]:
    """All of them. Neighbours take about equally long."""
    yield from _of_architectures()
    yield from _of_schemes()
    yield from _of_drafters()
    for architecture in ("llama", "gemma3_text", "qwen3_next"):
        yield partial(come_back, partial(typed, architecture, mx.bfloat16))
    yield partial(come_back, with_experts_on_disk)
    yield from (sample, adapt, diverge, score_a_prompt, read_and_plan, read_heads, rank_by_words)
    yield attend_in_pieces
    for model in MODELS:
        yield partial(show, model)
    for case in tiny.cases():
        yield partial(encode, case, np.float32)
    for case in ("BertModel", "Qwen3Model"):
        yield partial(encode, case, np.float16)


def _of_architectures() -> Iterator[Run]:
    for architecture in (*CONFIGS, "gemma2"):
        yield partial(converse, partial(typed, architecture, mx.bfloat16))
    yield partial(ask_again, partial(typed, "deepseek_v41", mx.bfloat16))
    for architecture in ("llama", "gemma3_text", "qwen3_next"):
        yield partial(converse, partial(typed, architecture, mx.float16), Referring)
    for architecture in ("llama", "gpt_oss"):
        yield partial(converse, partial(packed, architecture))


def _of_schemes() -> Iterator[Run]:
    for scheme in FOUR_BITS:
        for architecture in ("llama", "gpt_oss"):
            yield partial(converse, partial(few_bits, architecture, scheme), Referring)
        yield partial(come_back, partial(few_bits, "llama", scheme))
    for scheme in (scheme for scheme in SCHEMES if scheme not in FOUR_BITS):
        yield partial(ask_again, partial(few_bits, "llama", scheme))


def _of_drafters() -> Iterator[Run]:
    for architecture in ("llama", "lfm2"):
        yield partial(draft, architecture)
    for architecture in ("qwen3_5", "glm4_moe"):
        yield partial(draft_by_heads, architecture)


def typed(architecture: str, dtype: mx.Dtype) -> LoadedModel:
    """A tiny model that computes in `dtype`."""
    return _computing_in(dtype, load_tiny(architecture))


def _computing_in(dtype: mx.Dtype, loaded: LoadedModel) -> LoadedModel:
    loaded.model.set_dtype(dtype)
    mx.eval(loaded.model.parameters())
    return loaded


def packed(architecture: str) -> LoadedModel:
    """A tiny model in bfloat16 with weights of four bits."""
    loaded = typed(architecture, mx.bfloat16)
    nn.quantize(loaded.model, group_size=32, bits=4)
    mx.eval(loaded.model.parameters())
    return loaded


def few_bits(architecture: str, scheme: Scheme) -> LoadedModel:
    """A tiny model in bfloat16 with keys and values of a scheme."""
    return _computing_in(mx.bfloat16, quantised(architecture, scheme))


def converse(make: Callable[[], LoadedModel], codec: Any = None) -> None:
    """Rows that join, fork, are cut and leave, and prompts that begin as stored ones."""
    loaded = make()
    drive = Drive(loaded, LIMITS, SIZE, **({"codec": codec} if codec else {}))
    told = [*_REPEATING, *drive.answer("first", _REPEATING, 6)]
    drive.add("next turn", [*told, 5, 6, 7], sampling(6))
    drive.step()
    drive.add("two choices", [*_HEAD, 8, 9], sampling(4, temperature=1.0, seed=3), n=2)
    drive.add("other end", [*told[:25], *tokens("end", 30)], sampling(4))
    drive.add("one token", [7], sampling(3))
    drive.add("cancelled", tokens("stranger", 21), sampling(40))
    for _ in range(4):
        drive.step()
    drive.cancel("cancelled")
    complete(drive)


def diverge() -> None:
    """Rows that refer to one span: read together, and gone on for very different lengths."""
    drive = Drive(typed("llama", mx.bfloat16), LIMITS, SIZE, codec=Referring)
    drive.answer("first", _REPEATING, 3)
    for end in ("one end", "other end"):
        drive.add(end, [*_REPEATING[:32], *tokens(end, 30)], sampling(4))
    drive.finish()
    drive.add("long", [*_REPEATING, *tokens("long", 300)], sampling(4), speculation="off")
    drive.add("short", [*_REPEATING, 5], sampling(30), speculation="off")
    complete(drive)


def ask_again(make: Callable[[], LoadedModel]) -> None:
    """A prompt twice: the second time it comes out of the cache."""
    drive = Drive(make(), LIMITS, SIZE)
    for name in ("first", "again"):
        drive.answer(name, _HEAD[:19], 2)


def complete(drive: Drive) -> None:
    drive.finish()
    failed = [name for name, end in drive.ends.items() if end is FinishReason.ERROR]
    assert not failed, failed


def sample() -> None:
    """Every option of the sampler, in one batch."""
    drive = Drive(typed("llama", mx.bfloat16), LIMITS, SIZE)
    for number, options in enumerate((*OPTIONS, {})):
        drive.add(f"r{number}", _REPEATING, sampling(9, **options))
    drive.add("grammar", _REPEATING, sampling(30), constraint=Template(form("portable")))
    complete(drive)


def adapt() -> None:
    """Rows with adapters of two ranks and with none, of which one then goes."""
    loaded = typed("llama", mx.bfloat16)
    drive = Drive(loaded, LIMITS, SIZE)
    with TemporaryDirectory() as directory:
        made = [
            save_adapter(Path(directory) / f"{number}", loaded.model, seed=number, rank=rank)
            for number, rank in enumerate((4, 4, 8))
        ]
        for adapter in made:
            finish(loaded.adapters.loading(loaded.model, adapter))
    for number, own in enumerate((None, *made)):
        drive.add(f"r{number}", [*_HEAD, number], sampling(4), adapter=own)
    complete(drive)
    finish(loaded.adapters.unloading(made[0]))
    drive.answer("again", _HEAD, 2, adapter=made[1])


def draft(architecture: str) -> None:
    """A model that knows fewer tokens drafts, for rows that sample and rows that don't."""
    drafter = _computing_in(mx.bfloat16, load_tiny(architecture, vocab_size=VOCAB - 9))
    pair = paired(typed(architecture, mx.bfloat16), drafter)
    drive = Drive(pair, replace(LIMITS, speculation="draft"), SIZE)
    drive.add("greedy", _REPEATING, sampling(12))
    for number, options in enumerate(OPTIONS):
        drive.add(f"r{number}", [*_HEAD, number], sampling(9, **options))
    complete(drive)


def draft_by_heads(architecture: str) -> None:
    """Heads that draft, and what their forward takes."""
    loaded = headed(architecture)
    drive = Drive(loaded, replace(LIMITS, speculation="heads"), SIZE)
    for number in range(3):
        drive.add(f"r{number}", [*_HEAD, number], sampling(6))
        drive.step()
    complete(drive)
    assert isinstance(loaded.model, Headed)
    finish(measuring_step_costs(forward_of_heads(loaded.model), 2))


def come_back(make: Callable[[], LoadedModel]) -> None:
    """A prompt whose blocks have left the memory for files."""
    loaded = make()
    with (
        TemporaryDirectory() as directory,
        cold_cache.instance(Path(directory), loaded, write_through=True) as drive,
    ):
        drive.answer("first", _REPEATING, 9)
        drive.instance.cache.budget = HotBudget(0, 0, buffers=0)
        drive.answer("all out", tokens("stranger", 3), 1)
        drive.instance.cache.budget = ROOMY
        drive.answer("again", _REPEATING, 9)


def score_a_prompt() -> None:
    finish(score_prompt(typed("llama", mx.bfloat16).model, VOCAB, _HEAD, 3))


def read_and_plan() -> None:
    """A model out of files, and what it takes of the memory."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "tiny"
        save_tiny(path, "llama", head_dim=32)
        loaded = load(path, scheme=FOUR_BITS[0])
    finish(calibrating(loaded, shape_of(loaded)))
    recurrent = typed("mamba2", mx.bfloat16).model
    filled_caches(recurrent, 20, 16, one_token_caches(recurrent))


def read_heads() -> None:
    """Heads out of files, where the experts are stored apart."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "tiny"
        save_tiny(path, "qwen3_5_moe")
        heads = random_heads(make_model("qwen3_5_moe")[0])
        add(path, experts_apart(as_trained("qwen3_5", make_model("qwen3_5")[0], heads)))
        finish(loading(path, heads=True))


def with_experts_on_disk() -> LoadedModel:
    with TemporaryDirectory() as directory:
        save_tiny(Path(directory), "mixtral")
        return loaded_on_disk(Path(directory), 2)


def encode(case: str, dtype: Any) -> None:
    """Vectors, or how well a text fits a question."""
    with TemporaryDirectory() as directory:
        weights = {name: array.astype(dtype) for name, array in tiny.weights_of(case).items()}
        path, inputs = tiny.save(Path(directory), case, weights), tiny.inputs_of(case)
        if "Classification" in case:
            collect(load_cross_encoder(path).score(inputs), len(inputs))
        else:
            collect(load_embedder(path).embed(inputs), len(inputs))


def attend_in_pieces() -> None:
    """Attention of an encoder to more than it may score at a time."""
    q, k, v = (mx.zeros((1, 2, 6, 8), dtype=mx.float16) for _ in range(3))
    attend(q, k, v, None, most_scores=24)


def show(name: str) -> None:
    """Two images in a prompt that is cut before the second, and a token behind them."""
    model = loaded(name, mx.bfloat16)
    prompt = model.prompt(1)
    _, caches = in_chunks(model, prompt, (prompt.starts[1] - 1,))
    mx.eval(ImageForward(model.model, shifted_by([prompt.delta]))(mx.array([[7]]), caches))


def rank_by_words() -> None:
    model = typed("qwen3", mx.bfloat16).model
    prompts = [[*_HEAD, 21, 22], [*_HEAD, 31], _HEAD]
    collect(score(model, prompts, yes=7, no=8, slice_tokens=9), len(prompts))


def main(number: int, shares: int) -> None:
    trace = Trace()
    trace.begin()
    for run in list(runs())[number::shares]:
        run()
    trace.write()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
