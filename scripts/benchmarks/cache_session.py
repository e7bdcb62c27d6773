"""What is asked of a server that keeps prompts: again, half known, turn by turn, many at once.

A nonce stands near the start of every prompt of a session, so that nothing of an earlier one is of
use; not even to a server that has kept its cache from an earlier run. The answers may end by
themselves, and each prompt ends with a plain question: what comes first is text, not a control
token.
"""

from typing import Protocol

from scripts.benchmarks.answer import Answer
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.prompts import QUESTIONS, PromptMaker
from scripts.benchmarks.workload import Message, Prompt, Workload


class Server(Protocol):
    """Something that answers over HTTP."""

    name: str

    def ask(self, workload: Workload) -> list[Answer]: ...


class CacheSession:
    """The prompts of one round; each method asks them of one server.

    `partial` comes after `repeat`, with which it shares its start. The others stand alone.
    """

    def __init__(self, plan: Plan, prompts: PromptMaker, nonce: str) -> None:
        self._plan = plan
        self._prompts = prompts
        self._nonce = nonce
        self.known = prompts.document(plan.repeat_tokens, f"repeat {nonce}", QUESTIONS[0])
        self._half_known = prompts.diverge(self.known, plan.shared_tokens, QUESTIONS[0])
        document = prompts.document(plan.prefix_tokens, f"together {nonce}", "")
        self._together = tuple(
            prompts.about(document, question) for question in QUESTIONS[: plan.together]
        )

    def repeat(self, server: Server) -> list[Answer]:
        """One prompt: cold, then again and again."""
        return [
            answer
            for _ in range(1 + self._plan.repeat_again)
            for answer in self._ask(server, self.known)
        ]

    def partial(self, server: Server) -> list[Answer]:
        return self._ask(server, self._half_known)

    def turns(self, server: Server) -> list[Answer]:
        """A conversation: each turn repeats all before it, with the server's own answers."""
        answers: list[Answer] = []
        history: tuple[Message, ...] = ({"role": "system", "content": f"turns {self._nonce}"},)
        for turn in range(1, self._plan.turns + 1):
            tokens = self._plan.turns_tokens * turn // self._plan.turns
            question = QUESTIONS[turn % len(QUESTIONS)]
            prompt = self._prompts.turn(history, tokens, f"turn {turn}", question)
            answers += self._ask(server, prompt)
            history = (*prompt.messages, {"role": "assistant", "content": answers[-1].text})
        return answers

    def together(self, server: Server) -> list[Answer]:
        """One long prefix with a question of its own in each request, all at the same time."""
        return self._ask(server, *self._together)

    def _ask(self, server: Server, *prompts: Prompt) -> list[Answer]:
        return server.ask(Workload(prompts, self._plan.cache_out, may_end=True))
