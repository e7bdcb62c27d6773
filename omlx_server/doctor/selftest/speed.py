"""The speed of prefill, and of decoding beside MLX's bare loop."""

from omlx_server.compute.bare import decode_rate, rate_since_all_began
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.doctor.finding import ok, warn
from omlx_server.doctor.selftest.check import REPORT, Beat, Check, SelftestPlan
from omlx_server.doctor.selftest.session import TestPrompt
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.wiring.model_factory import limits

# Below this share of the bare loop's speed there is a warning.
_LEAST_SHARE = 0.8
_PROMPT = 64


def chunks(subject: Subject, plan: SelftestPlan, beat: Beat) -> Check:
    """Check the size and the time of a prompt's chunks."""
    scheduler = limits(subject.settings, subject.located.names)
    size, halved = scheduler.prefill_chunk_tokens, scheduler.halve_chunks_at
    count = max(1, subject.tokens(plan.chunks * size) // size)
    seconds = []
    for number in range(2):
        beat(number, 2)
        # The last token of a prompt is computed with the first one of the answer.
        prompt = subject.prompts.tokens(count * size + 1)
        answer = subject.session.alone(TestPrompt(prompt, 1, subject.session.salt()))
        seconds += [at - answer.begun for at in answer.times[:1]]
    if not seconds:
        return Check(warn("chunks", "no prompt of several chunks was answered", REPORT))
    rate = count * size / min(seconds)
    chunk = min(seconds) / _chunks_of(scheduler, count * size)
    words = f"{size} tokens" + (f", halved from token {halved} on" if halved else "")
    figures = {
        "chunk_tokens": size,
        "halved_at": halved,
        "seconds_per_chunk": round(chunk, 4),
        "prompt_tokens_per_second": round(rate, 1),
    }
    says = f"{words}: {_seconds(chunk)} each; prompts at {rate:.0f} tokens/s"
    return Check(ok("chunks", says), figures)


def _chunks_of(scheduler: SchedulerLimits, tokens: int) -> int:
    position = count = 0
    while position < tokens:
        position, count = position + scheduler.grid_at(position), count + 1
    return count


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def decoding(subject: Subject, plan: SelftestPlan, streams: int, beat: Beat) -> Check:
    """Check the tokens per second of `streams` answers together, beside mlx-lm's loop on the same
    weights: the best of all rounds."""
    streams = min(streams, subject.most_rows)
    what = f"{streams} stream{'s' if streams > 1 else ''}"
    ours, bare = list[float](), list[float]()
    for number in range(plan.rounds + 1):  # the first one warms both up
        beat(number, plan.rounds + 1)
        prompts = [subject.prompts.tokens(_PROMPT) for _ in range(streams)]
        length = plan.decoded if number else min(plan.decoded, 8)
        ours.append(_rate(subject, prompts, length))
        bare.append(decode_rate(subject.loaded, prompts, length))
    if not (all(ours[1:]) and all(bare[1:])):
        return Check(warn(what, "answers did not come, so nothing was measured", REPORT))
    # Other work of the machine only makes a round slower, so the best one counts.
    rate, bare_rate = max(ours[1:]), max(bare[1:])
    ratio = rate / bare_rate
    figures = {
        "streams": streams,
        "tokens_per_second": round(rate, 2),
        "bare_tokens_per_second": round(bare_rate, 2),
        "ratio": round(ratio, 3),
    }
    says = f"{rate:.1f} tokens/s, {ratio:.2f} of MLX's bare loop"
    if ratio < _LEAST_SHARE:
        fix = f"close other programs and measure again; if it stays, {REPORT}"
        return Check(warn(what, f"{says}: the server costs more than it should", fix), figures)
    return Check(ok(what, says), figures)


def _rate(subject: Subject, prompts: list[tuple[int, ...]], length: int) -> float:
    """Return the tokens per second without drafts, as the bare loop has none; 0 if an answer is
    missing."""
    session = subject.session
    questions = [TestPrompt(prompt, length, session.salt(), drafts=False) for prompt in prompts]
    answers = session.ask(questions)
    if any(len(answer.times) < 2 for answer in answers):
        return 0.0
    return rate_since_all_began([answer.times for answer in answers])
