"""Gives a model our full-attention caches, after a proof that its attention can read them: a few
tokens on plain caches of ours must give mlx-lm's logits, alone and in a batch. Where that fails
for all caches at once, each is tried alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from weakref import ref

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures import special
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.codecs.registry import leaves, replaced
from omlx_server.compute.key_centre import key_centres
from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.latent import LatentKVCache, WholeKVCache
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Arrays, Partial, Scheme
from omlx_server.compute.kv.schemes.plain import Latent, Plain
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.kv.spans import Runs
from omlx_server.errors import ModelUnavailable, one_line

MakeCaches = Callable[[], Caches]
Makers = Mapping[int, Callable[[], Cache]]  # by leaf number

_PROMPTS = ((1, 2, 0), (2, 0, 1))
_PAST_DISPATCH = "its attention does not go through MLX's own function"
_TOLERANCE = 1e-3  # as a share of the largest logit
# The first forwards of the proof run mlx-lm's kernels. Later ones run others, which in 16 bits can
# round a token to another expert: there logits are compared in float32 only.
_FORWARDS_LIKE_MLX_LM = 2
# Raised by mlx and mlx-lm for arguments that they can't take.
_REFUSALS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Quantised:
    """The numbers of `quantised` and of `plain` (mlx-lm's) caches, and the `reason`."""

    quantised: int
    plain: int = 0
    reason: str = ""


def make_scheme(name: str, bits: float, group_size: int) -> Scheme | None:
    """Return the scheme of these average bits, None for "none". Raises ValueError."""
    match name:
        case "none":
            return None
        case "affine":
            return Affine(_whole_bits(bits), group_size)
        case "rotated":
            return Rotated.of(_whole_bits(bits), group_size)
        case "turboquant":
            return TurboQuant.of_bits(bits)
    raise ValueError(f"there is no scheme {name}")


def _whole_bits(bits: float) -> int:
    if bits != int(bits):
        raise ValueError(f"MLX quantises to whole bits, not to {bits:g}")
    return int(bits)


def use_scheme(model: nn.Module, scheme: Scheme) -> Quantised:
    """Make `new_caches` use this scheme where possible. Raises ModelUnavailable if nowhere."""
    dispatch.install()
    own = _MakeOwnCaches(model)
    members = [number for number, leaf in enumerate(leaves(own())) if type(leaf) is KVCache]
    if not members:
        raise _refusal(scheme, "no layer of it attends to everything through a plain KV cache")
    proof = _Proof(model, own, scheme, list(_run_forwards(model, own)))
    able, counts = proof.find_able(members)
    if not able:
        raise _refusal(scheme, counts.reason)
    vocabulary = proof.expected[0].shape[-1]
    try:
        makers = _makers_of_members(model, own, scheme, able, vocabulary)
        make = _MakeReplaced(own, makers)
        mx.eval(list(_run_forwards(model, make)))
    except _REFUSALS as error:
        raise _refusal(scheme, one_line(error)) from error
    model.make_cache = make
    return counts


def use_rows_of_own_length(model: nn.Module) -> Quantised:
    """Make `new_caches` use our plain caches where possible: batches then need no padding."""
    dispatch.install()
    own = _MakeOwnCaches(model)
    adapted = leaves(special.adapted(model, own()))
    members = [number for number, leaf in enumerate(adapted) if type(leaf) is KVCache]
    if not members:
        return Quantised(0)
    proof = _Proof(model, own, Plain(), list(_run_forwards(model, own)))
    able, counts = proof.find_able(members)
    makers: dict[int, Callable[[], Cache]] = dict.fromkeys(able, partial(PackedKVCache, Plain()))
    others = [member for member in members if member not in able]
    for make_other in (partial(LatentKVCache, Latent()), partial(WholeKVCache, Plain())):
        makers_of_all = makers | dict.fromkeys(others, make_other)
        if counts.plain and not proof.difference(makers_of_all):
            makers, counts = makers_of_all, Quantised(len(makers_of_all))
    if makers:
        model.make_cache = _MakeReplaced(own, makers)
    return counts


class _MakeOwnCaches:
    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self._make: Callable[[nn.Module], Caches] | None = getattr(type(model), "make_cache", None)

    def __call__(self) -> Caches:
        model = self._model()
        assert model is not None, "who asks for a model's caches holds the model"
        if self._make:
            return self._make(model)
        layers: Any = model.layers
        return [KVCache() for _ in layers]


class _MakeReplaced:
    def __init__(self, own: MakeCaches, makers: Makers) -> None:
        self._own = own
        self._makers = makers

    def __call__(self) -> Caches:
        numbers = count()
        return replaced(self._own(), lambda leaf: self._makers.get(next(numbers), lambda: leaf)())


def _makers_of_members(
    model: nn.Module, own: MakeCaches, scheme: Scheme, members: Sequence[int], vocabulary: int
) -> dict[int, Callable[[], Cache]]:
    if not isinstance(scheme, Rotated | TurboQuant):
        return dict.fromkeys(members, partial(PackedKVCache, scheme))
    centres = key_centres(model, lambda makers: _MakeReplaced(own, makers)(), members, vocabulary)
    makers = [partial(PackedKVCache, scheme.centred_on(centre)) for centre in centres]
    return dict(zip(members, makers, strict=True))


class _NotesReading(Plain):
    """A plain scheme that notes the sizes of heads, and whether attention came to it."""

    def __init__(self) -> None:
        self.head_dims: set[int] = set()
        self.attended = False

    def quantize_keys(self, x: mx.array) -> Arrays:
        self.head_dims.add(x.shape[-1])
        return super().quantize_keys(x)

    def quantize_values(self, x: mx.array) -> Arrays:
        self.head_dims.add(x.shape[-1])
        return super().quantize_values(x)

    def attend(self, *arguments: Any, **options: Any) -> mx.array:
        self.attended = True
        return super().attend(*arguments, **options)

    def part(self, *arguments: Any, **options: Any) -> Partial:
        self.attended = True
        return super().part(*arguments, **options)


@dataclass(frozen=True, slots=True, eq=False)
class _Proof:
    """Finds out which caches can be of a scheme, by the `expected` logits."""

    model: nn.Module
    own: MakeCaches
    scheme: Scheme
    expected: Sequence[mx.array]

    def find_able(self, members: Sequence[int]) -> tuple[list[int], Quantised]:
        obstacles = self._find_obstacles(members)
        able = [member for member in members if member not in obstacles]
        reason = next(iter(obstacles.values()), "")
        return able, Quantised(len(able), len(obstacles), reason)

    def _find_obstacles(self, members: Sequence[int]) -> dict[int, str]:
        """Return what is in the way of each member. All are tried together, then alone."""
        obstacle_of_all = self._find_obstacle(members)
        if not obstacle_of_all:
            return {}
        reasons = {member: self._find_obstacle([member]) for member in members}
        refused = {member: reason for member, reason in reasons.items() if reason}
        able = [member for member in members if member not in refused]
        if not able:
            return dict.fromkeys(members, obstacle_of_all)
        obstacle_of_able = self._find_obstacle(able)
        return refused | dict.fromkeys(able, obstacle_of_able) if obstacle_of_able else refused

    def _find_obstacle(self, members: Sequence[int]) -> str:
        """Return what is in the way of these members together; empty if nothing is."""
        schemes = {member: _NotesReading() for member in members}
        makers = {member: partial(PackedKVCache, scheme) for member, scheme in schemes.items()}

        def object_if_unread() -> str:
            # A layer without attention has a cache that it never uses.
            used = [scheme for scheme in schemes.values() if scheme.head_dims]
            is_read = bool(used) and all(scheme.attended for scheme in used)
            for scheme in used:
                scheme.attended = False
            return "" if is_read else _PAST_DISPATCH

        obstacle = self.difference(makers, object_if_unread)
        if obstacle:
            return obstacle
        try:
            for head_dim in {dim for scheme in schemes.values() for dim in scheme.head_dims}:
                self.scheme.check(head_dim)
        except ValueError as error:
            return one_line(error)
        return ""

    def difference(self, makers: Makers, objection: Callable[[], str] = lambda: "") -> str:
        """Return how logits differ with these `makers`, or an `objection`; else empty."""
        try:
            make = _MakeReplaced(self.own, makers)
            forwards = zip(_run_forwards(self.model, make), self.expected, strict=True)
            for number, (logits, expected) in enumerate(forwards):
                reason = objection()
                if reason:
                    return reason
                is_compared = number < _FORWARDS_LIKE_MLX_LM or expected.dtype == mx.float32
                if is_compared and not _is_close(logits, expected):
                    return "its attention computes something else with caches of ours"
        except (AttributeError, TypeError):  # an array was expected
            return "its attention reads keys and values by itself, past MLX's own function"
        except _REFUSALS as error:
            return one_line(error)
        return ""


def _run_forwards(model: nn.Module, make: MakeCaches) -> Iterator[mx.array]:
    prompt, alone = mx.array(_PROMPTS[:1]), make()
    yield model(prompt, cache=alone)
    yield model(mx.array([[1]]), cache=alone)
    [alone] = cache_ops.fork(alone, 1, prompt.size, Runs(least=0))
    yield model(mx.array([[0]]), cache=alone)
    if not cache_ops.why_alone(model):
        batch = cache_ops.merge([make(), make()])
        yield model(mx.array(_PROMPTS), cache=batch)
        cache_ops.extend(batch, cache_ops.merge([alone]))
        yield model(mx.array([[1], [2], [0]]), cache=batch)
        if cache_ops.can_take_out_drafts(alone):
            yield model(mx.array([[1, 2], [2, 0], [0, 1]]), cache=batch)
            cache_ops.take_out_drafts(batch, [0, 1, 0])
            yield model(mx.array([[2], [0], [1]]), cache=batch)


def _is_close(logits: mx.array, expected: mx.array) -> bool:
    tolerance = mx.abs(expected).max() * _TOLERANCE
    return bool((mx.abs(logits - expected).max() <= tolerance).item())


def _refusal(scheme: Scheme, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the KV cache of this model can't be held as {scheme.name}: {reason}",
        hint="serve it with kv_cache.scheme = none",
    )
