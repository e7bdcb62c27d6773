"""A conversation with a model."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from omlx_server.cli.shell.output import visible
from omlx_server.cli.talk.client import AnswerScreen, ChatClient, Message, Stopped, TimedAnswer
from omlx_server.cli.talk.image import Image, message_content
from omlx_server.errors import UsageError

MakeScreen = Callable[[], AbstractContextManager[AnswerScreen]]


class Conversation:
    """The messages so far. A failed or empty turn is dropped, with its images; a stopped one keeps
    its text.

    `fields` and the `preset` are sent with every request, `pending_images` with the next message.
    `dropped_messages` did not fit into the last turn's context.
    """

    def __init__(
        self,
        client: ChatClient,
        model: str,
        system: str,
        fields: Mapping[str, float],
        make_screen: MakeScreen,
    ) -> None:
        self.model = model
        self.system = system
        self.preset = ""
        self.pending_images: list[Image] = []
        self.dropped_messages = 0
        self.client = client
        self.fields: dict[str, object] = {**fields}
        self._make_screen = make_screen
        self._turns: list[Message] = []  # all but the system message
        # If the last question has no answer: the turns before it, and the question.
        self._unanswered: tuple[list[Message], Message] | None = None

    @property
    def max_tokens(self) -> float | None:
        value = self.fields.get("max_tokens")
        return value if isinstance(value, int | float) else None

    @property
    def messages(self) -> list[Message]:
        return [*self._system_messages(), *self._turns]

    def _system_messages(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def drop_oldest_turns(self) -> None:
        """Let the server leave out the oldest turns, many at once, when the context is full."""
        self.fields["context_overflow"] = "rolling"

    def choose_preset(self, name: str) -> list[str]:
        """Use this preset from now on, and return all. Raises UsageError for an unknown one."""
        presets = self.client.presets(self.model)
        if presets is None or name not in presets:
            hint = f"it has {visible(', '.join(presets))}" if presets else "it has none"
            raise UsageError(
                f"{visible(self.model)} has no preset {visible(name)}",
                hint="the server tells nothing of presets" if presets is None else hint,
            )
        self.preset = name
        return presets

    def say(self, prompt: str) -> TimedAnswer:
        """Ask `prompt`, with the pending images. Raises OmlxError, and Stopped with its text."""
        images, self.pending_images = self.pending_images, []
        return self._ask(self._turns, {"role": "user", "content": message_content(prompt, images)})

    def regenerate(self) -> TimedAnswer:
        """Ask the last question again. Raises as `say`, and UsageError if nothing was asked."""
        if self._unanswered is not None:
            return self._ask(*self._unanswered)
        for index in reversed(range(len(self._turns))):
            if self._turns[index]["role"] == "user":
                return self._ask(self._turns[:index], self._turns[index])
        raise UsageError("nothing was asked yet")

    def forget(self) -> None:
        self._turns, self.pending_images, self._unanswered = [], [], None
        self.dropped_messages = 0

    def replace(self, messages: Iterable[Message]) -> None:
        """Go on from these messages and their system message, if any."""
        self.forget()
        self._turns = list(messages)
        first = self._turns[0] if self._turns else {}
        self.system = ""
        if first.get("role") == "system" and isinstance(first["content"], str):
            self.system = first["content"]
            del self._turns[0]

    def _ask(self, earlier: list[Message], question: Message) -> TimedAnswer:
        self._unanswered = earlier, question
        turns = [*earlier, question]
        fields = self.fields | ({"preset": self.preset} if self.preset else {})
        messages = [*self._system_messages(), *turns]
        text = ""
        try:
            with self._make_screen() as screen:
                try:
                    answer = self.client.ask(self.model, messages, screen, **fields)
                except Stopped as stopped:
                    text = stopped.text
                    raise
                text = answer.text
        except KeyboardInterrupt:  # one more may come while the screen finishes
            raise Stopped(text) from None
        finally:
            if text:
                self._turns = [*turns, {"role": "assistant", "content": text}]
                self._unanswered = None
        return answer
