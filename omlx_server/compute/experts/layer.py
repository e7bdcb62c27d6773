"""A layer of experts of which some are in memory. Mlx thread."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.switch_layers import SwitchGLU

from omlx_server.compute.experts.reader import ExpertReader, Target
from omlx_server.compute.hardware import device
from omlx_server.core.device_errors import UnreadableWeights
from omlx_server.core.experts.files import StoredTensor
from omlx_server.core.experts.slots import ExpertPass, ExpertSlots

# Experts of the next layer are guessed for so few choices: a prompt takes nearly all of them.
_MOST_GUESSED = 64


class SlotMemory:
    """The memory of a layer's slots: for each parameter one array of bytes."""

    # Threads write into the arrays' memory, and MLX does not notice.

    def __init__(self, stored: Sequence[Sequence[StoredTensor]], slots: int) -> None:
        self.experts = len(stored[0])
        self._stored = stored
        self.arrays = [mx.zeros((slots, one[0].nbytes), mx.uint8) for one in stored]
        device.wait_for(self.arrays)
        self._memory = [memoryview(array).cast("B") for array in self.arrays]  # type: ignore[arg-type]

    def targets(self, expert: int, slot: int) -> list[Target]:
        return [
            (stored[expert], memory[slot * size : (slot + 1) * size])
            for stored, memory in zip(self._stored, self._memory, strict=True)
            for size in (stored[expert].nbytes,)
        ]


class ExpertsOnDisk(SwitchGLU):  # type: ignore[misc]
    """A layer whose parameters are those of its slots. It waits for the router in every forward."""

    # A slot is read into only when all products that use it are done: each is launched at once, and
    # `_used_at` tells whether one of this forward uses a slot.

    def __init__(self, whole: SwitchGLU, memory: SlotMemory, reader: ExpertReader) -> None:
        nn.Module.__init__(self)
        for name, module in whole.children().items():
            self[name] = module
        self.activation = whole.activation
        self._memory, self._reader, self._counts = memory, reader, reader.counts
        self._slots = ExpertSlots(len(memory.arrays[0]))
        self._waits = 0
        self._used_at = dict[int, int]()  # by slot, the number of waits before its last product
        self._reading = dict[int, Future[None]]()  # by slot
        self._ahead = dict[int, int]()  # slots by expert
        self._next: _Next | None = None

    def guess_for(self, layer: "ExpertsOnDisk", router: Callable[[mx.array], Any]) -> None:
        self._next = _Next(layer, router)

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        guess = self._next.guess(x, indices) if self._next else None
        device.wait_for(indices if guess is None else (indices, guess))
        self._wait()
        ids = np.array(indices)
        experts = Counter(ids.ravel().tolist())
        self._settle(experts)
        passes = self._slots.passes(experts)
        self._counts.used += len(experts)
        self._counts.missing += sum(len(one.loads) for one in passes)
        self._slots.use(experts)
        output = self._product(x, ids, passes)
        if guess is not None and self._next:
            self._next.layer.read_ahead(np.unique(np.array(guess)).tolist())
        return output

    def read_ahead(self, experts: Sequence[int]) -> None:
        self._settle(())
        count = self._memory.experts  # a router may choose others that compute nothing
        ahead = self._slots.ahead(expert for expert in experts if expert < count)
        self._load(ahead)
        self._ahead.update(ahead)

    def _settle(self, experts: Container[int]) -> None:
        """Take what was read ahead. Wait for those of `experts` only."""
        for expert, slot in list(self._ahead.items()):
            read = self._reading[slot]
            if expert not in experts and not read.done():
                continue
            del self._ahead[expert]
            self._counts.guessed += 1
            self._counts.right += expert in experts
            if read.exception() is None:  # else it is missing, and read again
                self._slots.fill(slot, expert)

    def _product(self, x: mx.array, ids: np.ndarray, passes: Sequence[ExpertPass]) -> mx.array:
        self._load(passes[0].loads)
        if len(passes) == 1:
            self._finish(passes[0])
            return self._launch(x, ids, passes[0].experts)
        rows, choices = x.reshape(-1, x.shape[-1]), ids.ravel()
        outputs, places = list[mx.array](), list[np.ndarray]()
        for one, loads in zip(passes, (*(later.loads for later in passes[1:]), {}), strict=True):
            self._finish(one)
            slots = {self._slots.slot_of[expert] for expert in one.experts}
            is_free = slots.isdisjoint(loads.values())
            if is_free:  # then they are read while these are computed
                self._load(loads)
            pairs = np.flatnonzero(np.isin(choices, one.experts))
            tokens = rows[mx.array(pairs // ids.shape[-1])]
            outputs.append(self._launch(tokens, choices[pairs][:, None], one.experts)[:, 0])
            places.append(pairs)
            if not is_free:
                self._load(loads)
        order = mx.array(np.argsort(np.concatenate(places)))
        return mx.concatenate(outputs)[order].reshape(*ids.shape, -1)

    def _launch(self, x: mx.array, ids: np.ndarray, experts: Sequence[int]) -> mx.array:
        slots = [self._slots.slot_of[expert] for expert in experts]
        slot_of = np.zeros(max(experts) + 1, np.uint32)
        slot_of[list(experts)] = slots
        output: mx.array = super().__call__(x, mx.array(slot_of[ids]))
        device.launch(output)
        self._used_at.update(dict.fromkeys(slots, self._waits))
        return output

    def _load(self, loads: Mapping[int, int]) -> None:
        """Empty the slots of these experts, and begin to read into them."""
        for expert, slot in loads.items():
            if self._used_at.get(slot) == self._waits:
                self._wait()
            if (before := self._reading.get(slot)) is not None:
                before.exception()
            self._ahead = {e: s for e, s in self._ahead.items() if s != slot}
            self._slots.empty(slot)
            self._reading[slot] = self._reader.read(self._memory.targets(expert, slot))

    def _finish(self, one: ExpertPass) -> None:
        """Wait for all reads of a pass. Raises UnreadableWeights for one that failed."""
        reads = [self._reading[slot].exception() for slot in one.loads.values()]
        problems = [problem for problem in reads if problem is not None]
        if problems:
            raise UnreadableWeights(f"experts can't be read: {problems[0]}") from problems[0]
        for expert, slot in one.loads.items():
            self._slots.fill(slot, expert)

    def _wait(self) -> None:
        device.wait()
        self._waits += 1


class _Next:
    """The next layer of experts, and its router."""

    def __init__(self, layer: ExpertsOnDisk, router: Callable[[mx.array], Any]) -> None:
        self.layer = layer
        self._router = router

    def guess(self, x: mx.array, indices: mx.array) -> mx.array | None:
        """Return the experts that the next layer may use: its input is like this one's."""
        count = indices.shape[-1]
        if indices.size > _MOST_GUESSED:
            return None
        try:
            routed = self._router(x)
        except ValueError:  # this router takes what the experts don't
            return None
        if isinstance(routed, tuple):
            experts: mx.array = routed[0]  # and their weights
            return experts
        return mx.argpartition(routed, kth=-count, axis=-1)[..., -count:]
