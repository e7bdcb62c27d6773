"""The fields of a text completion request. Types are strict; unknown fields are ignored."""

from typing import Annotated, Any

from pydantic import Field

from omlx_server.api.chat.sampling import MostTokens, SamplingFields, TokenId
from omlx_server.api.http.json_body import refuse
from omlx_server.api.http.texts import Text
from omlx_server.errors import BadRequest

_PROMPTS = 2048
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Prompt = (
    Text
    | TokenIds
    | Annotated[list[Text], Field(min_length=1, max_length=_PROMPTS)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=_PROMPTS)]
)


def prompts_in(prompt: Prompt) -> list[str | list[int]]:
    """Return one text, one list of token ids, or several of either as a list."""
    if isinstance(prompt, str):
        return [prompt]
    several = [one for one in prompt if not isinstance(one, int)]
    return several or [[one for one in prompt if isinstance(one, int)]]


UNSUPPORTED = {"prompt_logprobs": "use echo and logprobs"}


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: MostTokens | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: Text | None = None
    # Refused if they have a value; see UNSUPPORTED.
    prompt_logprobs: Any = None

    @property
    def answers(self) -> int:
        """Answers that the client gets for each prompt."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Answers that are generated for each prompt; the best are sent."""
        return self.best_of or self.answers

    def check(self) -> None:
        """Raise BadRequest for unsupported fields that would change the answer, and for
        contradictions."""
        refuse(self, UNSUPPORTED)
        self.check_stream_options()
        if self.candidates < self.answers:
            raise BadRequest("best_of must be at least n", param="best_of")
        if self.stream and self.candidates > self.answers:
            raise BadRequest("best_of can't be streamed", param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise BadRequest("max_tokens may be 0 with echo only", param="max_tokens")
        if self.suffix and self.echo:
            raise BadRequest("echo has no meaning with a suffix", param="echo")
