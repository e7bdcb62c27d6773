"""The answer of one choice, assembled token by token. Owned by its stream, on the asyncio thread.

    tokens -> text -> thoughts apart -> calls apart -> stop strings -> parts

Stop strings are matched in what is left for the reader: not in thoughts, nor in calls. Invariant:
the texts of all `Text` parts, joined, are `text`; of an answer without thoughts, calls and stops
that is `tokenizer.decode` of all tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omlx_server.text.answers.form import PLAIN, Form
from omlx_server.text.answers.stops import StopMatcher
from omlx_server.text.encoding.detokenizer import Detokenizer
from omlx_server.text.parts import CallStart, Part, Reasoning, Text, merged
from omlx_server.text.reasoning.splitter import Splitter, make_splitter
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tools.numbering import Numbering
from omlx_server.text.tools.parser import ToolParser


@dataclass(frozen=True, slots=True)
class Delta:
    """`parts` may be shown now. `piece`: the bytes that this very token gave to the content."""

    parts: tuple[Part, ...]
    stopped: str | None
    piece: bytes

    @property
    def text(self) -> str:
        return text_of(self.parts)


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token as OpenAI's logprobs show it. `text` is not text where a character is cut. The first
    token of a prompt has no `logprob`."""

    text: str
    logprob: float | None
    bytes: list[int]


class Answer:
    """`made`: characters that are no thoughts, `shown`: how many of them may be seen already."""

    def __init__(self, tokenizer: Tokenizer, form: Form = PLAIN) -> None:
        numbering = Numbering(form.make_call_id)
        self._form = form
        self._detokenizer = Detokenizer(tokenizer, started=form.continues, shown=form.shown)
        self._splitter = _splitter(form, numbering)
        self._tools = ToolParser(form.family, form.tools, numbering) if form.family else None
        self._stops = StopMatcher(form.stops, form.include_stop)
        self._texts: list[str] = []
        self.stopped: str | None = None
        self.full = False
        self.calls = 0
        self.made = 0
        self.shown = 0

    @property
    def text(self) -> str:
        """All content that was shown so far."""
        return "".join(self._texts)

    @property
    def thinking(self) -> bool:
        return self._splitter is not None and self._splitter.thinking

    @property
    def ended(self) -> bool:
        """Nothing more is shown: a stop string came, or one call more than was asked for."""
        return self.stopped is not None or self.full

    def add(self, token: int) -> Delta:
        piece = self._detokenizer.take(token)
        parts = self._show(self._read(self._split(self._detokenizer.join(piece))))
        return Delta(parts, self.stopped, _as_bytes(piece))

    def finish(self) -> tuple[Part, ...]:
        """The held rest. It can complete a stop string: see `stopped`."""
        split = self._split(self._detokenizer.finish())
        if self._splitter is not None:
            split += self._splitter.finish()
        read = self._read(split) + (list(self._tools.finish()) if self._tools else [])
        parts = self._show(read)
        return parts if self.ended else tuple(merged([*parts, *self._released()]))

    def _split(self, text: str) -> list[Part]:
        if self._splitter is not None:
            return self._splitter.feed(text)
        return [Text(text)]

    def _read(self, parts: Iterable[Part]) -> list[Part]:
        """Calls out of the text."""
        read: list[Part] = []
        for part in parts:
            if isinstance(part, Text):
                self.made += len(part.text)
                read += self._tools.feed(part.text) if self._tools else [part]
            else:
                read.append(part)
        return read

    def _show(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        shown = tuple(merged(part for read in parts for part in self._shown_of(read)))
        if self._tools is not None and not self.ended:
            self.shown = self.made
        return shown

    def _shown_of(self, part: Part) -> Iterator[Part]:
        if self.ended:
            return
        if isinstance(part, Text):
            yield from self._matched(part.text)
            return
        if not isinstance(part, Reasoning):
            yield from self._released()
        if isinstance(part, CallStart):
            self.full = self.calls > 0 and not self._form.many
            self.calls += not self.full
        if not self.full:
            yield part

    def _matched(self, text: str) -> Iterator[Text]:
        result = self._stops.add(text)
        self.stopped = self.stopped or result.stopped
        yield from self._content(result.text)

    def _released(self) -> Iterator[Text]:
        """No stop string reaches over the beginning of a call, or the end."""
        held = self._stops.finish()
        self._stops = StopMatcher(self._form.stops, self._form.include_stop)
        yield from self._content(held)

    def _content(self, text: str) -> Iterator[Text]:
        if text and not self._form.calls_only:
            self._texts.append(text)
            self.shown += len(text)
            yield Text(text)


def text_of(parts: Iterable[Part]) -> str:
    """The content that `parts` hold."""
    return "".join(part.text for part in parts if isinstance(part, Text))


def _splitter(form: Form, numbering: Numbering) -> Splitter | None:
    if form.style is None:
        return None
    return make_splitter(form.style, form.opening, form.ends, numbering)


def token_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenEntry:
    """For a token by itself, such as an alternative that was not chosen."""
    return piece_entry(tokenizer.token_bytes(token_id), logprob)


def piece_entry(piece: bytes, logprob: float | None) -> TokenEntry:
    """For a chosen token, by its `Delta.piece`: joined, their bytes are those of the content."""
    return TokenEntry(_readable(piece), logprob, list(piece))


def _as_bytes(piece: bytes | str | None) -> bytes:
    if piece is None:
        return b""
    return piece if isinstance(piece, bytes) else piece.encode()


def _readable(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
