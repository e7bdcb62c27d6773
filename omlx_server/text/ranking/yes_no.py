"""The question that a language model answers with yes or no when it ranks documents. Any thread.

The words are those that Qwen3-Reranker was trained with; other models that know ChatML's tokens
understand them too.
"""

from dataclasses import dataclass

from omlx_server.errors import ModelUnavailable
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
    """`YesNoPrompt.of(tokenizer)` is the way to make one. `yes` and `no` are token ids."""

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

    def encode(
        self, query: str, document: str, *, instruction: str = INSTRUCTION, limit: int | None = None
    ) -> list[int]:
        """The prompt's ids. Neither text can hold a control token; with `limit` (in tokens) the
        end of a long document is left out."""
        question = QUESTION.format(instruction=instruction, query=query)
        if limit is None:
            body = self.tokenizer.encode(question + document, special=False)
        else:
            room = max(0, limit - len(self.before) - len(self.after))
            body = self.tokenizer.beginning(question + document, room)
        return [*self.before, *body, *self.after]
