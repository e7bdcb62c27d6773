"""instructor: answers of a fixed form, by tools and by schema, over chat and over responses."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

from typing import Any

import instructor
from instructor import Mode
from instructor.core import InstructorRetryException
from openai import OpenAI

from tests.clients.scenario import Scenarios, Server
from tests.clients.weather import QUESTION, TOKENS, Weather

scenarios = Scenarios("instructor")


def asking(server: Server, mode: Any) -> Any:
    plain = OpenAI(base_url=server.v1, api_key="x", max_retries=0, _strict_response_validation=True)
    return instructor.from_openai(plain, mode=mode, model=server.model)


def filled(server: Server, mode: Any, **fields: Any) -> None:
    asked: Any = {"messages": [{"role": "user", "content": QUESTION}], **fields}
    answer = asking(server, mode).create(response_model=Weather, max_retries=0, **asked)
    assert isinstance(answer, Weather)


@scenarios
def by_tools(server: Server) -> None:
    filled(server, Mode.TOOLS, max_tokens=TOKENS)


@scenarios
def by_json_schema(server: Server) -> None:
    filled(server, Mode.JSON_SCHEMA, max_tokens=TOKENS)


@scenarios
def by_responses(server: Server) -> None:
    filled(server, Mode.RESPONSES_TOOLS, max_output_tokens=TOKENS)


@scenarios
def partial_stream(server: Server) -> None:
    """Objects that fill up as the arguments of a call come in."""
    parts = list(
        asking(server, Mode.TOOLS).create_partial(
            response_model=Weather,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=TOKENS,
            max_retries=0,
        )
    )
    assert len(parts) > 1 and Weather.model_validate(parts[-1].model_dump())


@scenarios
def errors(server: Server) -> None:
    try:
        filled(server, Mode.TOOLS, model="no/such", max_tokens=1)
    except InstructorRetryException as error:
        assert "no/such" in str(error)
        return
    raise AssertionError("an unknown model was not refused")


if __name__ == "__main__":
    scenarios.main()
