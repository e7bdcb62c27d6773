"""Schemathesis over a document and the server that it describes. It draws requests that fit and
requests that do not, and holds each answer against the document."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder

Json = dict[str, Any]

ALL_PHASES = ("examples", "coverage", "fuzzing", "stateful")
# What fits a schema and is refused all the same has a status of its own, which is declared.
_OFF = ("positive_data_acceptance",)
_LONGEST, _MOST = 4, 2
# What bounds an answer, where that may be left out.
_LENGTHS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/responses": "max_output_tokens",
}


@dataclass(slots=True)
class Outcome:
    """`statuses`: how often each operation gave which."""

    cases: int = 0
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{name}: {dict(sorted(c.items()))}" for name, c in sorted(self.statuses.items())]
        head = f"{self.cases} cases, {len(self.failures)} failures"
        return "\n".join([head, *rows, *self.failures])

    def add(self, recorder: ScenarioRecorder) -> None:
        self.cases += len(recorder.cases)
        counter = self.statuses.setdefault(recorder.label, Counter())
        for interaction in recorder.interactions.values():
            if interaction.response is not None:
                counter[interaction.response.status_code] += 1
        for id, checks in recorder.checks.items():
            case = recorder.cases[id].value
            for check in checks:
                if check.failure_info is not None:
                    told = f"{check.name}: {check.failure_info.failure}"
                    self.failures.append(
                        f"{recorder.label} {told}\n{case.as_curl_command()}"[:2000]
                    )


def run(
    document: Json,
    url: str,
    key: str,
    *,
    phases: Sequence[str],
    examples: int,
    seed: int,
    leave_out: Sequence[str] = (),
    deterministic: bool = True,
) -> Outcome:
    """`leave_out`: paths. Not `deterministic`: the seed counts."""
    settings = _config(phases, examples, seed)
    settings["generation"]["deterministic"] = deterministic
    config = SchemathesisConfig.from_dict(settings)
    schema = schemathesis.openapi.from_dict(document, config=config)
    schema.config.update(base_url=url, headers={"Authorization": f"Bearer {key}"})
    outcome = Outcome()
    for event in from_schema(schema.exclude(path=list(leave_out))).execute():
        match event:
            case events.ScenarioFinished():
                outcome.add(event.recorder)
            case events.NonFatalError() | events.FatalError():
                outcome.failures.append(str(event))
    return outcome


def _config(phases: Sequence[str], examples: int, seed: int) -> Json:
    return {
        "seed": seed,
        "request-timeout": 60,
        "suppress-health-check": ["all"],
        "continue-on-failure": True,
        "generation": {"max-examples": examples, "no-shrink": True},
        "checks": {name: {"enabled": False} for name in _OFF},
        "phases": {name: {"enabled": name in phases} for name in ALL_PHASES},
    }


@schemathesis.hook("before_call")
def _shorten(context: Any, case: Any, kwargs: Any) -> None:
    """What fits still fits, and what does not fit does not; it only takes less time."""
    body = case.body
    if isinstance(body, dict):
        length = _LENGTHS.get(case.operation.path)
        if length is not None and body.get(length) is None:
            body[length] = _LONGEST
        if case.operation.path in ("/api/chat", "/api/generate"):
            _bound_options(body)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            _lower(body, name, _LONGEST, 1 << 31)
        _lower(body, "n", _MOST, 128)
        for name in ("prompt", "input", "documents"):
            if isinstance(body.get(name), list) and len(body[name]) <= 2048:
                body[name] = body[name][:_MOST]


def _bound_options(body: Json) -> None:
    """Ollama's options may be left out, and without a positive `num_predict` nothing bounds an
    answer."""
    options = body.get("options")
    if options is None:
        options = body["options"] = {}
    if isinstance(options, dict):
        given = options.get("num_predict")
        if given is None or (type(given) is int and -(1 << 31) <= given <= 1 << 31):
            options["num_predict"] = _LONGEST


def _lower(body: Json, name: str, value: int, bound: int) -> None:
    given = body.get(name)
    if isinstance(given, int) and value < given <= bound:
        body[name] = value
