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
from omlx_server.compute.kv.latent import LatentKVCache
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Arrays, Scheme
from omlx_server.compute.kv.schemes.partial import Partial
from omlx_server.compute.kv.schemes.plain import Latent, Plain
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.kv.whole import WholeKVCache
from omlx_server.errors import ModelUnavailable, one_line

MakeCaches = Callable[[], Caches]
Makers = Mapping[int, Callable[[], Cache]]  # by leaf number

_ROWS = ((1, 2, 0), (2, 0, 1))
_PAST_DISPATCH = "its attention does not go through MLX's own function"
_TOLERANCE = 1e-3  # as a share of the largest logit
# The first forwards of the proof run mlx-lm's kernels. Later ones run others, which in 16 bits can
# round a token to another expert: there logits are compared in float32 only.
_ALONE = 2
# Raised by mlx and mlx-lm for arguments that they can't take.
_REFUSALS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Quantised:
    """The numbers of `quantised` and of `plain` (mlx-lm's) caches, and the `reason`."""

    quantised: int
    plain: int = 0
    reason: str = ""


def make_scheme(name: str, bits: float, group_size: int) -> Scheme | None:
    """Return the scheme, None for "none". `bits` is the average over keys and values. Raises
    ValueError."""
    match name:
        case "none":
            return None
        case "affine":
            return Affine(_whole(bits), group_size)
        case "rotated":
            return Rotated.of(_whole(bits), group_size)
        case "turboquant":
            return TurboQuant.of_bits(bits)
    raise ValueError(f"there is no scheme {name}")


def _whole(bits: float) -> int:
    if bits != int(bits):
        raise ValueError(f"MLX quantises to whole bits, not to {bits:g}")
    return int(bits)


def use_scheme(model: nn.Module, scheme: Scheme) -> Quantised:
    """Make `new_caches` use this scheme where possible. Raises ModelUnavailable if nowhere."""
    dispatch.install()
    own = _OwnCaches(model)
    members = [number for number, leaf in enumerate(leaves(own())) if type(leaf) is KVCache]
    if not members:
        raise _refused(scheme, "no layer of it attends to everything through a plain KV cache")
    proof = _Proof(model, own, scheme, list(_forwards(model, own)))
    able, counts = proof.sorted_out(members)
    if not able:
        raise _refused(scheme, counts.reason)
    try:
        make = _Replacing(own, _makers(model, own, scheme, able, proof.expected[0].shape[-1]))
        mx.eval(list(_forwards(model, make)))
    except _REFUSALS as error:
        raise _refused(scheme, one_line(error)) from error
    model.make_cache = make
    return counts


def use_rows_of_own_length(model: nn.Module) -> Quantised:
    """Make `new_caches` use our plain caches where possible: batches then need no padding."""
    dispatch.install()
    own = _OwnCaches(model)
    adapted = leaves(special.adapted(model, own()))
    members = [number for number, leaf in enumerate(adapted) if type(leaf) is KVCache]
    if not members:
        return Quantised(0)
    proof = _Proof(model, own, Plain(), list(_forwards(model, own)))
    able, counts = proof.sorted_out(members)
    makers: dict[int, Callable[[], Cache]] = dict.fromkeys(able, partial(PackedKVCache, Plain()))
    others = [member for member in members if member not in able]
    for kind in (partial(LatentKVCache, Latent()), partial(WholeKVCache, Plain())):
        if counts.plain and not proof.difference(with_all := makers | dict.fromkeys(others, kind)):
            makers, counts = with_all, Quantised(len(with_all))
    if makers:
        model.make_cache = _Replacing(own, makers)
    return counts


class _OwnCaches:
    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self._make: Callable[[nn.Module], Caches] | None = getattr(type(model), "make_cache", None)

    def __call__(self) -> Caches:
        model = self._model()
        assert model is not None, "a model is asked for caches by those who hold it"
        if self._make:
            return self._make(model)
        layers: Any = model.layers
        return [KVCache() for _ in layers]


class _Replacing:
    def __init__(self, own: MakeCaches, makers: Makers) -> None:
        self._own = own
        self._makers = makers

    def __call__(self) -> Caches:
        numbers = count()
        return replaced(self._own(), lambda leaf: self._makers.get(next(numbers), lambda: leaf)())


def _makers(
    model: nn.Module, own: MakeCaches, scheme: Scheme, members: Sequence[int], vocabulary: int
) -> dict[int, Callable[[], Cache]]:
    if not isinstance(scheme, Rotated | TurboQuant):
        return dict.fromkeys(members, partial(PackedKVCache, scheme))
    centres = key_centres(model, lambda makers: _Replacing(own, makers)(), members, vocabulary)
    schemes = [scheme.around(centre) for centre in centres]
    return {m: partial(PackedKVCache, its) for m, its in zip(members, schemes, strict=True)}


class _Witness(Plain):
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

    def sorted_out(self, members: Sequence[int]) -> tuple[list[int], Quantised]:
        obstacles = self.obstacles(members)
        able = [member for member in members if member not in obstacles]
        reason = next(iter(obstacles.values()), "")
        return able, Quantised(len(able), len(obstacles), reason)

    def obstacles(self, members: Sequence[int]) -> dict[int, str]:
        with_all = self._obstacle(members)
        if not with_all:
            return {}
        reasons = {member: self._obstacle([member]) for member in members}
        refused = {member: reason for member, reason in reasons.items() if reason}
        able = [member for member in members if member not in refused]
        if not able:
            return dict.fromkeys(members, with_all)
        obstacle = self._obstacle(able)
        return refused | dict.fromkeys(able, obstacle) if obstacle else refused

    def _obstacle(self, members: Sequence[int]) -> str:
        witnesses = {member: _Witness() for member in members}
        makers = {member: partial(PackedKVCache, witness) for member, witness in witnesses.items()}

        def unread() -> str:
            # A layer without attention has a cache that it never uses.
            used = [witness for witness in witnesses.values() if witness.head_dims]
            is_read = bool(used) and all(witness.attended for witness in used)
            for witness in used:
                witness.attended = False
            return "" if is_read else _PAST_DISPATCH

        if obstacle := self.difference(makers, unread):
            return obstacle
        try:
            for head_dim in {dim for witness in witnesses.values() for dim in witness.head_dims}:
                self.scheme.check(head_dim)
        except ValueError as error:
            return one_line(error)
        return ""

    def difference(self, makers: Makers, objection: Callable[[], str] = lambda: "") -> str:
        """Return how logits differ with these `makers`, or a forward's `objection`; else empty."""
        try:
            replacing = _Replacing(self.own, makers)
            forwards = zip(_forwards(self.model, replacing), self.expected, strict=True)
            for number, (logits, plain) in enumerate(forwards):
                if objected := objection():
                    return objected
                compared = number < _ALONE or plain.dtype == mx.float32
                if compared and not _same(logits, plain):
                    return "its attention computes something else with caches of ours"
        except (AttributeError, TypeError):  # an array was expected
            return "its attention reads keys and values by itself, past MLX's own function"
        except _REFUSALS as error:
            return one_line(error)
        return ""


def _forwards(model: nn.Module, make: MakeCaches) -> Iterator[mx.array]:
    prompt, alone = mx.array(_ROWS[:1]), make()
    yield model(prompt, cache=alone)
    yield model(mx.array([[1]]), cache=alone)
    [alone] = cache_ops.forked(alone, 1, prompt.size, Runs(least=0))
    yield model(mx.array([[0]]), cache=alone)
    if not cache_ops.why_alone(model):
        batch = cache_ops.merge([make(), make()])
        yield model(mx.array(_ROWS), cache=batch)
        cache_ops.extend(batch, cache_ops.merge([alone]))
        yield model(mx.array([[1], [2], [0]]), cache=batch)
        if cache_ops.can_cut_back(alone):
            yield model(mx.array([[1, 2], [2, 0], [0, 1]]), cache=batch)
            cache_ops.cut_back(batch, [0, 1, 0])
            yield model(mx.array([[2], [0], [1]]), cache=batch)


def _same(logits: mx.array, plain: mx.array) -> bool:
    slack = mx.abs(plain).max() * _TOLERANCE
    return bool((mx.abs(logits - plain).max() <= slack).item())


def _refused(scheme: Scheme, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the KV cache of this model can't be held as {scheme.name}: {reason}",
        hint="serve it with kv_cache.scheme = none",
    )
