"""Batched equals alone: rows that decode together answer as each does alone."""

from omlx_server.doctor.finding import Finding, fail, ok
from omlx_server.doctor.selftest.check import REPORT, Beat, Check, SelftestPlan
from omlx_server.doctor.selftest.session import TestPrompt
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.doctor.selftest.verdict import Tally

_WHAT = "batch"
_SHORTEST = 5


def batched(subject: Subject, plan: SelftestPlan, beat: Beat) -> Check:
    """Check rows of different lengths, of which half come while the others decode."""
    rows = min(plan.rows, subject.most_rows)
    if rows < 2:
        why = subject.instance.runner.why_alone or "scheduler.max_batch_size is 1"
        return Check(ok(_WHAT, f"one row at a time: {why}"))
    session, random = subject.session, subject.prompts.random
    longest = subject.tokens(plan.row)
    prompts = [subject.prompts.tokens(random.randint(_SHORTEST, longest)) for _ in range(rows)]
    alone = []
    for number, prompt in enumerate(prompts):
        beat(number, rows + 1)
        alone.append(session.alone(TestPrompt(prompt, plan.answer, session.salt())))
    beat(rows, rows + 1)
    questions = [TestPrompt(prompt, plan.answer, session.salt()) for prompt in prompts]
    answers = session.ask(questions[: rows // 2], late=questions[rows // 2 :])
    tally = Tally()
    for prompt, expected, answer in zip(prompts, alone, answers, strict=True):
        tally.count(subject.loaded, prompt, expected, answer)
    figures = {
        "rows": rows,
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "same": tally.same,
        "ties": tally.ties,
        "wrong": tally.wrong,
    }
    return Check(_judged(tally), figures)


def _judged(tally: Tally) -> Finding:
    if tally.problem:
        return fail(_WHAT, f"an answer did not come: {tally.problem}", REPORT)
    if tally.wrong:
        return fail(
            _WHAT,
            f"{tally.wrong} of {tally.asked} rows that decode together answer otherwise than "
            "alone: rows of the batch are mixed up",
            f"scheduler.max_batch_size = 1 avoids it; {REPORT}",
        )
    return ok(_WHAT, f"{tally.asked} rows together answer as each does alone{tally.by_ties}")
