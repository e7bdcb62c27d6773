"""A query and a document as the prompt of a language model that answers with yes or no. Immutable;
any thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.encoded import Encoded
from omlx_server.errors import BadRequest
from omlx_server.text.ranking.yes_no import YesNoPrompt


@dataclass(frozen=True, slots=True)
class YesNoPairs:
    prompt: YesNoPrompt

    def encode_pairs(self, query: str, documents: Sequence[str], limit: int) -> list[Encoded]:
        """`query` with each document; of one that is too long the end is left out.

        Raises:
            BadRequest: the query leaves documents less than half of `limit`.
        """
        question = len(self.prompt.encode(query, "", limit=limit))
        if question > limit // 2:
            least = "at least " if question == limit else ""
            raise BadRequest(
                f"the query makes a prompt of {least}{question} tokens; it may have {limit // 2}",
                param="query",
            )
        prompts = (self.prompt.encode(query, document, limit=limit) for document in documents)
        return [Encoded(tuple(prompt)) for prompt in prompts]
