"""The plan of a measurement, and its rounds: warm up, first tokens, decoding, turns of a talk."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

from omlx_server.cli.bench import words
from omlx_server.cli.bench.result import Figure, FigureGroup
from omlx_server.cli.bench.target import BenchPromptTooLong, BenchReply, BenchTarget, decode_rate
from omlx_server.cli.bench.words import Message, Scale, scale_of, user_message

# Takes the stage, how much of it is done, and how much it is.
ReportProgress = Callable[[str, int, int], None]
_FEW_WORDS, _MANY_WORDS = 20, 100
_WARM_UP_TOKENS = 8
_FOLLOW_UP_WORDS = 20


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The measurements. `lengths` are in tokens. The rounds after the warm-up may take `seconds`;
    the longest prompts and most streams give way."""

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


def deadlines(start: float, seconds: float, *shares: float) -> list[float]:
    """Return when each share (0 to 1) of `seconds` from `start` on ends, and when the rest does."""
    ends = [start + seconds * sum(shares[: i + 1]) for i in range(len(shares))]
    return [*ends, start + seconds]


def fitting_repeats(seconds: float, cost: float, most: int) -> int:
    """Return how often `cost` seconds fit into `seconds`, up to `most`."""
    return most if cost <= 0 else min(most, int(max(0.0, seconds) / cost))


class ServerBench:
    """Carries out a plan against one server. `notes` say what was left out, and why."""

    def __init__(self, target: BenchTarget, plan: BenchPlan, report: ReportProgress) -> None:
        self.notes: list[str] = []
        self._target = target
        self._plan = plan
        self._report = report
        self._scale = Scale()
        # Measured in the warm-up, to know what there is time for; 0 while unknown.
        self._prompt_token_seconds = 0.0
        self._answer_token_seconds = 0.0

    async def run(self) -> list[Figure]:
        plan = self._plan
        await self._warm_up()
        ends = deadlines(time.monotonic(), plan.seconds, plan.first_share, plan.decode_share)
        figures = await self._measure_first_tokens(ends[0])
        figures += await self._measure_decoding(ends[1])
        figures += await self._measure_turns(ends[2])
        if not self._target.takes_ignore_eos:
            self.notes.append("the server ends answers when it likes (it refuses ignore_eos)")
        return figures

    async def _warm_up(self) -> None:
        self._report("warm up", 0, 3)
        few = await self._target.ask_first(words.new_prompt(_FEW_WORDS), _WARM_UP_TOKENS)
        self._report("warm up", 1, 3)
        many = await self._target.ask(words.new_prompt(_MANY_WORDS), _WARM_UP_TOKENS)
        self._report("warm up", 2, 3)
        self._scale = scale_of(_FEW_WORDS, few.prompt_tokens, _MANY_WORDS, many.prompt_tokens)
        timed = await self._target.ask(words.new_prompt(_MANY_WORDS), _WARM_UP_TOKENS)
        self._learn_prompt_speed(timed)
        stream = timed.stream
        self._answer_token_seconds = (stream.last - stream.first) / max(1, stream.tokens - 1)
        self._report("warm up", 3, 3)

    def _learn_prompt_speed(self, reply: BenchReply) -> None:
        if reply.prompt_tokens:
            self._prompt_token_seconds = reply.stream.ttft / reply.prompt_tokens

    async def _measure_first_tokens(self, deadline: float) -> list[Figure]:
        figures: list[Figure] = []
        for index, length in enumerate(self._plan.lengths):
            self._report("first tokens", index, len(self._plan.lengths))
            cost = length * self._prompt_token_seconds
            repeats = fitting_repeats(deadline - time.monotonic(), cost, self._plan.repeats)
            if not repeats and index:
                what = f"prompts of {length} tokens and more"
                self.notes.append(f"{what} would take longer than the time there is")
                break
            try:
                figures += await self._measure_cold_and_warm(length, max(1, repeats))
            except BenchPromptTooLong:
                self.notes.append(f"the model's context is too short for {length} tokens")
                break
        self._report("first tokens", 1, 1)
        return figures

    async def _measure_cold_and_warm(self, length: int, repeats: int) -> list[Figure]:
        cold, warm = [], []
        for _ in range(repeats):
            messages = words.new_prompt(self._scale.words(length))
            cold.append(await self._target.ask(messages, 1))
            warm.append(await self._target.ask(messages, 1))
        self._learn_prompt_speed(cold[-1])
        return [
            _first_token_figure(FigureGroup.COLD, length, cold),
            _first_token_figure(FigureGroup.WARM, length, warm),
        ]

    async def _measure_decoding(self, deadline: float) -> list[Figure]:
        figures: list[Figure] = []
        counts = self._plan.streams
        for index, count in enumerate(counts):
            self._report("decoding", index, len(counts))
            seconds = max(0.0, deadline - time.monotonic()) / (len(counts) - index)
            most_tokens = self._answer_tokens(count, seconds)
            rates, drafted = await self._decode_rates(count, most_tokens, seconds)
            if not rates:
                self.notes.append(f"{count} streams never ran together, or there was no time")
                break
            figures.append(Figure(FigureGroup.DECODE, count, tuple(rates), drafted=drafted))
        self._report("decoding", 1, 1)
        return figures

    def _answer_tokens(self, count: int, seconds: float) -> int:
        """Return the length of answers of `count` streams that repeat the round in `seconds`."""
        plan, fitting_tokens = self._plan, 0.0
        if self._answer_token_seconds:
            prompt_seconds = count * plan.stream_tokens * self._prompt_token_seconds
            decode_seconds = seconds / plan.repeats - prompt_seconds
            # As if the streams were decoded one after another.
            fitting_tokens = decode_seconds / (count * self._answer_token_seconds)
        return max(plan.least_out_tokens, min(plan.out_tokens, int(fitting_tokens)))

    async def _decode_rates(
        self, count: int, most_tokens: int, seconds: float
    ) -> tuple[list[float], float | None]:
        """Return each round's tokens per second, and the drafted share of all."""
        rates, answers = list[float](), list[BenchReply]()
        cost, deadline = 0.0, time.monotonic() + seconds
        for number in range(self._plan.repeats):
            if number and time.monotonic() + cost > deadline:
                break
            begun = time.monotonic()
            length = self._scale.words(self._plan.stream_tokens)
            prompts = [words.new_prompt(length) for _ in range(count)]
            asked = (self._target.ask(prompt, most_tokens) for prompt in prompts)
            replies = await asyncio.gather(*asked)
            cost = time.monotonic() - begun
            rate = decode_rate([reply.stream for reply in replies])
            rates += [rate] if rate else []
            answers += replies
        return rates, _drafted_share(answers)

    async def _measure_turns(self, deadline: float) -> list[Figure]:
        plan, talks = self._plan, list[list[BenchReply]]()
        begun = time.monotonic()
        for number in range(plan.repeats):
            self._report("turns", number, plan.repeats)
            cost = (time.monotonic() - begun) / number if number else 0.0
            if number and time.monotonic() + cost > deadline:
                break
            talks.append(await self._hold_talk())
        self._report("turns", 1, 1)
        return [
            _first_token_figure(FigureGroup.TURN, turn, replies)
            for turn, replies in enumerate(zip(*talks, strict=True), start=1)
        ]

    async def _hold_talk(self) -> list[BenchReply]:
        plan, replies = self._plan, list[BenchReply]()
        messages: list[Message] = words.new_prompt(self._scale.words(plan.turn_tokens))
        for _ in range(plan.turns):
            replies.append(await self._target.ask(messages, plan.turn_out))
            messages.append({"role": "assistant", "content": replies[-1].text})
            more_words = words.random_words(_FOLLOW_UP_WORDS)
            messages.append(user_message(f"Go on, and use these: {more_words}"))
        return replies


def _drafted_share(replies: Sequence[BenchReply]) -> float | None:
    drafted = [reply.drafted for reply in replies if reply.drafted is not None]
    return sum(drafted) / sum(reply.stream.tokens for reply in replies) if drafted else None


def _first_token_figure(group: FigureGroup, at: int, replies: Sequence[BenchReply]) -> Figure:
    cached = [reply.cached for reply in replies if reply.cached is not None]
    return Figure(
        group,
        at,
        tuple(reply.stream.ttft for reply in replies),
        median_low([reply.prompt_tokens for reply in replies]),
        median_low(cached) if cached else None,
    )
