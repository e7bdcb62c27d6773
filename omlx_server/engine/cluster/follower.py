"""A rank other than 0, which does with its part of the model what rank 0 tells it. Payloads have
rank 0's ids. Lives on the mlx thread."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from omlx_server.compute.caches import Caches, new_caches
from omlx_server.compute.launched import CutPayload, Launched
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload, pack
from omlx_server.compute.planning.probe import ForwardProbe, one_token_caches
from omlx_server.compute.planning.step_costs import forward_of, seconds_of
from omlx_server.compute.runner import ModelRunner
from omlx_server.compute.score import launch_slice
from omlx_server.compute.verify import VerifyingDecode
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.core.cluster import commands
from omlx_server.core.cluster.commands import Command, with_contexts
from omlx_server.core.memory.kv import Decode, PrefillShape
from omlx_server.core.step import Step
from omlx_server.engine.tiers import unpack_or_reject
from omlx_server.store.cold import ColdTier

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5


class OutOfStep(Exception):
    """This rank can't do what rank 0 did."""


class Follower:
    """One rank's part of a loaded model. `answer` sends a message to rank 0."""

    def __init__(
        self,
        loaded: LoadedModel,
        codec: BlockCodec | None,
        cold: ColdTier | None,
        namespace: str,
        answer: Callable[[object], None],
    ) -> None:
        self._loaded = loaded
        self._hot: dict[PayloadId, Payload] = {}
        self.runner = ModelRunner(loaded, codec, self._hot.__getitem__)
        self._cold = cold
        self._namespace = namespace
        self._answer = answer
        self._cuts: dict[int, CutPayload] = {}  # by rank 0's number of the cut
        self._reading: dict[BlockKey, list[int]] = {}  # numbers of rank 0's reads
        self._read_payloads: dict[int, Payload] = {}  # by the number of the read
        self._verifying: Launched | None = None
        self._scoring_caches: dict[int, Caches] = {}
        self._polled_at = 0.0

    @cached_property
    def _forward_probe(self) -> ForwardProbe:
        return ForwardProbe(self._loaded)

    def do(self, command: Command) -> None:
        """Do a command. Raises OutOfStep, or whatever the work raises."""
        if time.monotonic() - self._polled_at > _POLL_SECONDS:
            self.poll()  # also between commands, to notice slow reads
        match command:
            case commands.LaunchStep(step):
                self._launch_decode(self.runner.decode(step))
            case commands.Accept(right, newest):
                self._accept(right, newest)
            case commands.Chunks(step):
                self._launch_chunks(step)
            case commands.Score(number, tokens):
                self._score(number, tokens)
            case commands.OneToken():
                one_token_caches(self._loaded.model)
            case commands.ProbeForward(kind, prefill, decode):
                self._probe(kind, prefill or decode)
            case commands.Width(tokens):
                seconds_of(forward_of(self._loaded.target), tokens)
            case _:
                self._do_with_payloads(command)

    def _do_with_payloads(self, command: Command) -> None:
        match command:
            case commands.CutIds():
                self._keep_cuts(command)
            case commands.Drop(ids):
                for id in ids:
                    del self._hot[id]
            case commands.Tidy(wholly):
                self.runner.runs.tidy(wholly=wholly or self.runner.idle)
            case commands.Reset(blocks):
                self._reset(blocks=blocks)
            case commands.WritePayload(id, record):
                self._write(id, record)
            case commands.ReadPayload():
                self._read(command)
            case commands.Promote(number, id):
                self._promote(number, id)
            case commands.Clear(keys):
                self._clear(keys)
            case commands.ClearAll():
                if self._cold is not None:
                    self._cold.clear_all()
            case _:
                raise OutOfStep(f"rank 0 tells what no rank does: {type(command).__name__}")

    def close(self, seconds: float) -> None:
        if self._cold is not None:
            self._cold.close(seconds)
            self._cold = None

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` for writes to the cold tier. Any thread."""
        cold = self._cold
        if cold is not None:
            cold.drain(seconds)

    # -- steps ---------------------------------------------------------------------------

    def _launch_decode(self, launched: Launched) -> None:
        self._note_cuts(launched.tails)
        if launched.is_verifying:
            self._verifying = launched
            return
        self.runner.sample(launched)
        self._note_cuts(launched.payloads)

    def _accept(self, right: Sequence[int], newest: Sequence[int]) -> None:
        launched, self._verifying = self._verifying, None
        if launched is None or not isinstance(launched.decoded, VerifyingDecode):
            raise OutOfStep("rank 0 accepts drafts that are not verified here")
        self.runner.accept(launched.decoded, right, newest)
        self._note_cuts(self.runner.cut(launched.step.row_cuts))

    def _launch_chunks(self, step: Step) -> None:
        chunks = self.runner.prefill(with_contexts(step))
        if chunks.failures or chunks.lost or chunks.starved:
            raise OutOfStep("a prompt that rank 0 computes could not be computed here")
        self._note_cuts(chunks.payloads)

    def _note_cuts(self, payloads: Iterable[CutPayload]) -> None:
        for payload in payloads:
            self._cuts[payload.cut.number] = payload

    def _keep_cuts(self, ids: commands.CutIds) -> None:
        cut = self._cuts.pop(ids.number, None)
        block, checkpoint = (cut.block, cut.checkpoint) if cut else (None, None)
        for id, payload in ((ids.block, block), (ids.checkpoint, checkpoint)):
            if id is not None:
                if payload is None:
                    raise OutOfStep("rank 0 keeps a block that was not cut here")
                self._hot[id] = payload

    def _reset(self, *, blocks: bool) -> None:
        self._verifying = None
        self._cuts.clear()
        self.runner.reset()
        if blocks:
            self._hot.clear()
            self._read_payloads.clear()

    # -- the cold tier -------------------------------------------------------------------

    def _in_own_namespace(self, record: Record) -> Record:
        return replace(record, namespace=self._namespace)

    def _write(self, id: PayloadId, record: Record) -> None:
        payload = self._hot[id]
        if self._cold is not None and not payload.is_lost:
            self._cold.write(self._in_own_namespace(record), partial(pack, payload), payload.nbytes)

    def _read(self, read: commands.ReadPayload) -> None:
        if self._cold is None:
            self._answer(commands.PayloadRead(read.number, "gone"))
            return
        self._reading.setdefault(read.record.key, []).append(read.number)
        self._cold.read(self._in_own_namespace(read.record), read.patience)
        self.poll()

    def poll(self) -> None:
        self._polled_at = time.monotonic()
        if self._cold is None:
            return
        for event in self._cold.poll(self._namespace):
            if isinstance(event, Recalled):
                payload = unpack_or_reject(self._cold, event)
                for number in self._reading.pop(event.record.key, ()):
                    if isinstance(payload, str):
                        self._answer(commands.PayloadRead(number, payload))
                    else:
                        self._read_payloads[number] = payload
                        self._answer(commands.PayloadRead(number))

    def _promote(self, number: int, id: PayloadId | None) -> None:
        payload = self._read_payloads.pop(number, None)
        if id is not None:
            if payload is None:
                raise OutOfStep("rank 0 uses a block that was not read here")
            self._hot[id] = payload

    def _clear(self, keys: Sequence[BlockKey] | None) -> None:
        if self._cold is not None:
            if keys is None:
                self._cold.clear(self._namespace)
            else:
                self._cold.clear_chains(keys)

    # -- probes --------------------------------------------------------------------------

    def _score(self, number: int, tokens: Sequence[int]) -> None:
        if not tokens:
            self._scoring_caches.pop(number, None)
            return
        model = self._loaded.target
        caches = self._scoring_caches.setdefault(number, new_caches(model))
        launch_slice(model, caches, tokens)

    def _probe(self, kind: str, shape: PrefillShape | Decode | None) -> None:
        match kind, shape:
            case "prefill", PrefillShape():
                self._forward_probe.prefill(shape)
            case "prefill_seconds", PrefillShape():
                self._forward_probe.prefill_seconds(shape)
            case "decode", Decode():
                self._forward_probe.decode(shape)
            case "layers", Decode():
                self._forward_probe.layers(shape)
            case _:
                self._forward_probe = ForwardProbe(self._loaded)
