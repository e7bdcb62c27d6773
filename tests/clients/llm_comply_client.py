"""llm-comply: whole suites of requests whose answers are held to the published documents."""

# Its package is in the project's own environment for its documents, and has no types.
# mypy: disable-error-code="import-untyped"

from importlib import resources

from llm_comply.config import ComplianceConfig
from llm_comply.result import TestResult, TestStatus
from llm_comply.runner import TestRunner
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests

from tests.clients.scenario import Scenarios, Server

scenarios = Scenarios("llm-comply")

SECONDS = 300.0  # for an answer; the starter model is small, machines are busy
NO_IMAGES = "image-input"  # the end of the only test's name that a text model can't pass


def suite(server: Server, form: str, document: str, **fields: object) -> None:
    """All tests of one API pass, without a warning; images are refused as such."""
    config = ComplianceConfig(
        base_url=server.v1, api_key="x", model=server.model, timeout=SECONDS, **fields
    )
    path = resources.files("llm_comply.specs") / document
    results = TestRunner(config, get_tests(form), SpecLoader(str(path))).run_all().results
    wrong = [told(result) for result in results if not is_good(result)]
    assert not wrong, "; ".join(wrong)
    assert sum(result.status is TestStatus.PASSED for result in results) >= len(results) - 2


def is_good(result: TestResult) -> bool:
    if result.id.endswith(NO_IMAGES):
        return result.status is TestStatus.FAILED and "HTTP 400" in result.errors[0]
    return result.status is not TestStatus.FAILED and not result.warnings


def told(result: TestResult) -> str:
    return f"{result.id}: {', '.join([*result.errors, *result.warnings][:3])}"


@scenarios
def open_responses(server: Server) -> None:
    suite(server, "open-responses", "openresponses.json")


@scenarios
def chat_completions(server: Server) -> None:
    suite(server, "openai-chat", "openai_chat.json")


@scenarios
def messages(server: Server) -> None:
    version = {"anthropic-version": "2023-06-01"}
    key = {"auth_header": "x-api-key", "use_bearer_prefix": False}
    suite(server, "anthropic", "anthropic.json", extra_headers=version, **key)


if __name__ == "__main__":
    scenarios.main()
