"""A query and a document as the prompt of a language model that answers with yes or no. Immutable;
any thread."""

from dataclasses import dataclass

from omlx_server.core.encoded import Encoded
from omlx_server.errors import BadRequest
from omlx_server.text.yes_no import YesNoPrompt


@dataclass(frozen=True, slots=True)
class YesNoPairs:
    prompt: YesNoPrompt

    def encode_pair(self, query: str, document: str, limit: int) -> Encoded:
        """Of a document that is too long the end is left out.

        Raises:
            BadRequest: the query leaves documents less than half of `limit`.
        """
        question = len(self.prompt.encode(query, ""))
        if question > limit // 2:
            raise BadRequest(
                f"the query makes a prompt of {question} tokens; it may have {limit // 2}",
                param="query",
            )
        return Encoded(tuple(self.prompt.encode(query, document, limit=limit)))
