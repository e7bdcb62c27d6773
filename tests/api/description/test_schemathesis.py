"""Requests that schemathesis makes of the document, against a real server: no 5xx, no status, media
type, header or body that is not declared, nothing taken in that the document forbids, no route
without its key. A longer run of the same: scripts/campaign api."""

from tests.api.description import fuzz
from tests.api.description.judge import Judge, closed
from tests.api.description.narrow import narrowed
from tests.api.description.server import KEY
from tests.api.harness import ServerProcess

# They have bodies, or nearly all the fields of bodies, that other routes have.
_DOUBLES = (
    "/v1/responses",
    *("/rerank", "/v2/rerank", "/v1/cache/probe", "/v1/cache/export", "/v1/cache/pin"),
    *("/admin/cache/compare", "/api/embeddings"),
    *("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/messages/count_tokens"),
)


def test_no_request_gets_an_answer_that_is_not_declared(
    all_kinds: ServerProcess, judge: Judge
) -> None:
    outcome = fuzz.run(
        narrowed(closed(judge.document)),
        all_kinds.url,
        KEY,
        phases=("fuzzing",),
        examples=4,
        seed=1,
    )
    assert not outcome.failures, str(outcome)
    assert outcome.cases > 100
    assert len(outcome.statuses) == sum(map(len, judge.document["paths"].values()))
    good = {name for name, statuses in outcome.statuses.items() if statuses[200]}
    assert {"POST /v1/chat/completions", "POST /v1/messages", "POST /v1/responses"} <= good


def test_no_border_of_a_schema_is_wrong(all_kinds: ServerProcess, judge: Judge) -> None:
    """Each bound of each field, from both sides."""
    outcome = fuzz.run(
        narrowed(closed(judge.document)),
        all_kinds.url,
        KEY,
        phases=("coverage",),
        examples=1,
        seed=1,
        leave_out=_DOUBLES,
    )
    assert not outcome.failures, str(outcome)
    assert outcome.cases > 1000
