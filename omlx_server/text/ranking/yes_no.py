"""The yes-or-no question to a language model that ranks documents, in Qwen3-Reranker's words."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.encoded import TokenizedText
from omlx_server.errors import BadRequest, ModelUnavailable
from omlx_server.text.tokenizer import Tokenizer

BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
QUESTION = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True, slots=True)
class YesNoPrompt:
    """`yes`, `no`: token ids."""

    tokenizer: Tokenizer
    before: tuple[int, ...]
    after: tuple[int, ...]
    yes: int
    no: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "YesNoPrompt":
        """Raises ModelUnavailable when the vocabulary lacks a word or ChatML's tokens."""
        ids = {
            text: tokenizer.token_id(text) for text in ("yes", "no", "<|im_start|>", "<|im_end|>")
        }
        missing = [text for text, token_id in ids.items() if token_id is None]
        if missing:
            raise ModelUnavailable(
                f"the model can't rank documents: its vocabulary has no {missing[0]!r}"
            )
        before, after = (tuple(tokenizer.encode(text)) for text in (BEFORE, AFTER))
        return cls(tokenizer, before, after, ids["yes"] or 0, ids["no"] or 0)

    def encode(self, query: str, document: str, limit: int) -> list[int]:
        """Return at most `limit` ids: a long document is cut. Neither text can hold a control
        token."""
        question = QUESTION.format(instruction=INSTRUCTION, query=query)
        room = max(0, limit - len(self.before) - len(self.after))
        body = self.tokenizer.beginning(question + document, room)
        return [*self.before, *body, *self.after]

    def encode_pairs(self, query: str, documents: Sequence[str], limit: int) -> list[TokenizedText]:
        """Raises BadRequest if the query leaves documents less than half of `limit`."""
        question = len(self.encode(query, "", limit))
        if question > limit // 2:
            least = "at least " if question == limit else ""
            raise BadRequest(
                f"the query makes a prompt of {least}{question} tokens; it may have {limit // 2}",
                param="query",
            )
        prompts = (self.encode(query, document, limit) for document in documents)
        return [TokenizedText(tuple(prompt)) for prompt in prompts]
