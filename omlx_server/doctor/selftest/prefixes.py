"""Warm equals cold: an answer after a hit of the prefix cache is that of a fresh prefill."""

import time
from dataclasses import dataclass, field

from omlx_server.compute.payload import why_not_reused
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.cold.recall import Rates
from omlx_server.doctor.finding import Finding, fail, ok, warn
from omlx_server.doctor.selftest.check import FEWEST_HITS, REPORT, Beat, Check, SelftestPlan
from omlx_server.doctor.selftest.session import GreedyAnswer, TestPrompt
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.doctor.selftest.verdict import Tally

_RAM, _FILES = "hit: memory", "hit: files"
_LONGEST_OWN = 40


class Eager(Rates):
    """Rates that always read blocks from the cold tier and wait for them."""

    def reading_pays(self, tokens: int, nbytes: int) -> bool:
        return True

    def patience(self, tokens: int) -> float:
        return 60.0


@dataclass(slots=True)
class Hits:
    """The verdicts on answers after hits of one tier, and what these saved."""

    tally: Tally = field(default_factory=Tally)
    count: int = 0
    tokens: int = 0
    misses: set[str] = field(default_factory=set)

    def add(self, answer: GreedyAnswer) -> None:
        self.count += answer.cached > 0
        self.tokens += answer.cached
        self.misses |= {answer.miss.value} if not answer.cached else set()


@dataclass(frozen=True, slots=True)
class PrefixCase:
    """A prompt that begins as the base prompt does, and its answer by a fresh prefill."""

    tokens: tuple[int, ...]
    fresh: GreedyAnswer


class Prefixes:
    """Asks for prompts that leave the base prompt near ends of blocks. The base prompt's blocks
    have the salt `_warm`; a new salt hits nothing."""

    def __init__(self, subject: Subject, plan: SelftestPlan) -> None:
        self._subject = subject
        self._session = subject.session
        self._plan = plan
        self._warm = self._session.salt()
        self._prompts: list[PrefixCase] = []

    def memory(self, beat: Beat) -> Check:
        instance = self._subject.instance
        if not instance.cache.layout.keeps:
            why = "cache.enabled is off"
            if self._subject.settings.cache.enabled:
                why = why_not_reused(self._subject.loaded.model)
            return Check(ok(_RAM, f"nothing is reused: {why}"))
        hits = Hits()
        base = self._subject.prompts.tokens(self._subject.tokens(self._plan.base))
        conversation = [*base, *self._ask(base, self._warm).tokens]
        end = time.monotonic() + self._plan.seconds
        for number in range(self._plan.hits):
            if number >= FEWEST_HITS and time.monotonic() > end:
                break
            beat(number, self._plan.hits)
            tokens = base if number == 0 else self._branch(conversation)
            salt = self._session.salt()
            prompt = PrefixCase(tokens, self._ask(tokens, salt))
            instance.reset_cache(salt)
            self._prompts.append(prompt)
            self._check(prompt, hits)
        return Check(_judged(_RAM, hits), self._figures(hits))

    def files(self, beat: Beat) -> Check:
        """Check the hits of blocks evicted to files, with the prompts of `memory`."""
        instance, cold = self._subject.instance, self._subject.instance.tiers.cold
        if not self._prompts or not self._subject.settings.cache.has_cold:
            why = "cache.hot_cache_only is on" if self._prompts else "there is nothing to store"
            return Check(ok(_FILES, f"no files: {why}"))
        if cold is None:
            return Check(
                warn(_FILES, "a temporary directory can't be used", "is the disk full? See $TMPDIR")
            )
        instance.cache.read_ahead.rates = Eager()
        hits = Hits()
        for number, prompt in enumerate(self._prompts):
            beat(number, len(self._prompts))
            self._session.evict_all()
            self._check(prompt, hits)
        report = cold.report()
        figures = {
            "blocks_written": report.written,
            "blocks_read": report.read,
            "failed": dict(report.failed),
            "dropped": dict(report.dropped),
        }
        return Check(_stored(hits, report), {**self._figures(hits), **figures})

    def _check(self, prompt: PrefixCase, hits: Hits) -> None:
        answer = self._ask(prompt.tokens, self._warm)
        hits.add(answer)
        hits.tally.count(self._subject.loaded, prompt.tokens, prompt.fresh, answer)

    def _ask(self, tokens: tuple[int, ...], salt: bytes) -> GreedyAnswer:
        return self._session.alone(TestPrompt(tokens, self._plan.answer, salt))

    def _branch(self, conversation: list[int]) -> tuple[int, ...]:
        """Return the beginning of the base prompt and its answer, up to about the end of a block,
        and then a text of its own."""
        random, size = self._subject.prompts.random, self._subject.instance.cache.layout.block_size
        block = random.randint(1, max(1, len(conversation) // size)) * size
        offset = random.choice((-1, 0, 0, 1, random.randrange(size)))
        ending = self._subject.prompts.tokens(random.randint(2, _LONGEST_OWN))
        return (*conversation[: max(1, block + offset)], *ending)

    def _figures(self, hits: Hits) -> dict[str, object]:
        tally = hits.tally
        return {
            "answers": tally.asked,
            "same": tally.same,
            "ties": tally.ties,
            "wrong": tally.wrong,
            "hits": hits.count,
            "tokens_reused": hits.tokens,
            "block_tokens": self._subject.instance.cache.layout.block_size,
        }


def _judged(what: str, hits: Hits) -> Finding:
    tally = hits.tally
    if tally.problem:
        return fail(what, f"an answer did not come: {tally.problem}", REPORT)
    if tally.wrong:
        return fail(
            what,
            f"{tally.wrong} of {tally.asked} answers to prompts that were found are not those of a "
            "fresh prefill: "
            "the cache gives back something else than was computed",
            f"cache.enabled = false avoids it; {REPORT}",
        )
    if not hits.count:
        why = ", ".join(sorted(hits.misses))
        return warn(
            what,
            f"no prompt was found again ({why}): every prompt is computed from its beginning",
            "give the cache more: cache.hot_cache_max_bytes, memory.limit",
        )
    says = f"{hits.count} of {tally.asked} prompts were found, {hits.tokens} tokens of them"
    return ok(what, f"{says}; all answers are those of a fresh prefill{tally.by_ties}")


def _stored(hits: Hits, report: ColdReport) -> Finding:
    """Return the finding on files. Damaged files cost only time, so wrong answers weigh more."""
    late, finding = report.failed["timeout"], _judged(_FILES, hits)
    failed = sum(report.failed.values()) - late
    if hits.tally.wrong or hits.tally.problem:
        return finding
    if failed:
        reasons = ", ".join(sorted(report.failed.keys() - {"timeout"}))
        return fail(
            _FILES,
            f"{failed} of {failed + report.read} files of blocks can't be used when they are read "
            f"back ({reasons}): what the disk returns is not what was written. No answer was "
            "wrong: such blocks are computed again",
            "check the disk and the RAM; cache.hot_cache_only = true does without files",
        )
    if late:
        return warn(
            _FILES,
            f"{late} of {late + report.read} reads took more than a minute",
            "is the disk busy, or on the network? See cache.cold_dir",
        )
    if report.dropped:
        reasons = ", ".join(sorted(report.dropped))
        return warn(
            _FILES,
            f"{sum(report.dropped.values())} blocks were not written ({reasons})",
            "make room on the disk, or raise cache.cold_cache_max_bytes, cold_write_queue_bytes",
        )
    if not report.read:
        return warn(_FILES, "no block was read from a file, so files are not tested", REPORT)
    return finding
