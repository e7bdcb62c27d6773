"""The plan of a measurement, and its rounds: warm up, first tokens, decoding, turns of a talk."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

from omlx_server.cli.bench import words
from omlx_server.cli.bench.result import Figure, FigureGroup
from omlx_server.cli.bench.target import BenchPromptTooLong, BenchReply, BenchTarget, decode_rate
from omlx_server.cli.bench.words import Message, Scale, scale_of, user

# Reports progress: the stage, the part that is done, and the whole.
Tell = Callable[[str, int, int], None]
_FEW_WORDS, _MANY_WORDS = 20, 100
_WARM_UP_OUT = 8
_FOLLOW_UP_WORDS = 20


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Lengths are in tokens. The rounds after the warm-up may take `seconds`; the longest
    prompts and most streams give way."""

    seconds: float = 60.0
    repeats: int = 3
    lengths: tuple[int, ...] = (128, 512, 2048, 8192)
    first_share: float = 0.45
    streams: tuple[int, ...] = (1, 2, 4, 8)
    stream_tokens: int = 64
    out_tokens: int = 64
    least_out_tokens: int = 8
    decode_share: float = 0.35
    turns: int = 4
    turn_tokens: int = 256
    turn_out: int = 16


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A slice of time, in seconds on one clock."""

    start: float
    end: float

    def left(self, now: float) -> float:
        return max(0.0, self.end - now)

    def repeats(self, now: float, cost: float, most: int) -> int:
        """Return how often `cost` seconds fit in, up to `most`."""
        return most if cost <= 0 else min(most, int(self.left(now) / cost))


def slices(start: float, seconds: float, *shares: float) -> list[TimeSlice]:
    """Divide `seconds` from `start` on into one slice per share (0 to 1), and one for the rest."""
    ends = [start + seconds * sum(shares[: i + 1]) for i in range(len(shares))]
    ends.append(start + seconds)
    return [TimeSlice(begin, end) for begin, end in zip([start, *ends], ends, strict=False)]


class ServerBench:
    """Carries out a plan against one server. `notes` say what was left out, and why."""

    def __init__(self, target: BenchTarget, plan: BenchPlan, tell: Tell) -> None:
        self.notes: list[str] = []
        self._target = target
        self._plan = plan
        self._tell = tell
        self._scale = Scale()
        # Seconds for a token of a prompt, and for one of an answer.
        self._read = 0.0
        self._decode = 0.0

    async def run(self) -> list[Figure]:
        plan = self._plan
        await self._warm_up()
        parts = slices(time.monotonic(), plan.seconds, plan.first_share, plan.decode_share)
        first, decode, turns = parts
        figures = await self._first_tokens(first)
        figures += await self._decoding(decode)
        figures += await self._turns(turns)
        if not self._target.endless:
            self.notes.append("the server ends answers when it likes (it refuses ignore_eos)")
        return figures

    async def _warm_up(self) -> None:
        self._tell("warm up", 0, 3)
        few = await self._target.ask_first(words.fresh(_FEW_WORDS), _WARM_UP_OUT)
        self._tell("warm up", 1, 3)
        many = await self._target.ask(words.fresh(_MANY_WORDS), _WARM_UP_OUT)
        self._tell("warm up", 2, 3)
        self._scale = scale_of(_FEW_WORDS, few.prompt_tokens, _MANY_WORDS, many.prompt_tokens)
        again = await self._target.ask(words.fresh(_MANY_WORDS), _WARM_UP_OUT)
        self._learn(again)
        stream = again.stream
        self._decode = (stream.last - stream.first) / max(1, stream.tokens - 1)
        self._tell("warm up", 3, 3)

    def _learn(self, reply: BenchReply) -> None:
        if reply.prompt_tokens:
            self._read = reply.stream.ttft / reply.prompt_tokens

    async def _first_tokens(self, part: TimeSlice) -> list[Figure]:
        figures: list[Figure] = []
        for place, length in enumerate(self._plan.lengths):
            self._tell("first tokens", place, len(self._plan.lengths))
            times = part.repeats(time.monotonic(), length * self._read, self._plan.repeats)
            if not times and place:
                what = f"prompts of {length} tokens and more"
                self.notes.append(f"{what} would take longer than the time there is")
                break
            try:
                figures += await self._first_token(length, max(1, times))
            except BenchPromptTooLong:
                self.notes.append(f"the model's context is too short for {length} tokens")
                break
        self._tell("first tokens", 1, 1)
        return figures

    async def _first_token(self, length: int, times: int) -> list[Figure]:
        cold, warm = [], []
        for _ in range(times):
            messages = words.fresh(self._scale.words(length))
            cold.append(await self._target.ask(messages, 1))
            warm.append(await self._target.ask(messages, 1))
        self._learn(cold[-1])
        return [_first(FigureGroup.COLD, length, cold), _first(FigureGroup.WARM, length, warm)]

    async def _decoding(self, part: TimeSlice) -> list[Figure]:
        figures: list[Figure] = []
        counts = self._plan.streams
        for place, count in enumerate(counts):
            self._tell("decoding", place, len(counts))
            share = part.left(time.monotonic()) / (len(counts) - place)
            out = self._out_tokens(count, share)
            rates, drafted = await self._rates(count, out, share)
            if not rates:
                self.notes.append(f"{count} streams never ran together, or there was no time")
                break
            figures.append(Figure(FigureGroup.DECODE, count, tuple(rates), drafted=drafted))
        self._tell("decoding", 1, 1)
        return figures

    def _out_tokens(self, count: int, share: float) -> int:
        plan = self._plan
        reading = count * plan.stream_tokens * self._read
        fitting = (share / plan.repeats - reading) / (count * self._decode) if self._decode else 0
        return max(plan.least_out_tokens, min(plan.out_tokens, int(fitting)))

    async def _rates(self, count: int, out: int, share: float) -> tuple[list[float], float | None]:
        rates, answers = list[float](), list[BenchReply]()
        cost, part = 0.0, TimeSlice(time.monotonic(), time.monotonic() + share)
        for number in range(self._plan.repeats):
            if number and not part.repeats(time.monotonic(), cost, 1):
                break
            begun = time.monotonic()
            replies = await asyncio.gather(*(self._stream(out) for _ in range(count)))
            cost = time.monotonic() - begun
            rate = decode_rate([reply.stream for reply in replies])
            rates += [rate] if rate else []
            answers += replies
        return rates, _drafted(answers)

    async def _stream(self, out: int) -> BenchReply:
        prompt = words.fresh(self._scale.words(self._plan.stream_tokens))
        return await self._target.ask(prompt, out)

    async def _turns(self, part: TimeSlice) -> list[Figure]:
        plan, talks = self._plan, list[list[BenchReply]]()
        begun = time.monotonic()
        for number in range(plan.repeats):
            self._tell("turns", number, plan.repeats)
            cost = (time.monotonic() - begun) / number if number else 0.0
            if number and not part.repeats(time.monotonic(), cost, 1):
                break
            talks.append(await self._talk())
        self._tell("turns", 1, 1)
        return [
            _first(FigureGroup.TURN, turn, replies)
            for turn, replies in enumerate(zip(*talks, strict=True), start=1)
        ]

    async def _talk(self) -> list[BenchReply]:
        plan, replies = self._plan, list[BenchReply]()
        messages: list[Message] = words.fresh(self._scale.words(plan.turn_tokens))
        for _ in range(plan.turns):
            replies.append(await self._target.ask(messages, plan.turn_out))
            messages.append({"role": "assistant", "content": replies[-1].text})
            messages.append(user(f"Go on, and use these: {words.drawn(_FOLLOW_UP_WORDS)}"))
        return replies


def _drafted(replies: Sequence[BenchReply]) -> float | None:
    drafted = [reply.drafted for reply in replies if reply.drafted is not None]
    return sum(drafted) / sum(reply.stream.tokens for reply in replies) if drafted else None


def _first(group: FigureGroup, at: int, replies: Sequence[BenchReply]) -> Figure:
    cached = [reply.cached for reply in replies if reply.cached is not None]
    return Figure(
        group,
        at,
        tuple(reply.stream.ttft for reply in replies),
        median_low([reply.prompt_tokens for reply in replies]),
        median_low(cached) if cached else None,
    )
