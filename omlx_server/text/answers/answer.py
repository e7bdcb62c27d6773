"""Assembles the answer of one choice, token by token, on the asyncio thread.

    tokens -> text -> thoughts split off -> calls split off -> stop strings -> parts

Invariant: without thoughts, calls and stops the texts of all parts, joined, are `tokenizer.decode`
of all tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.encoding.pieces import Detokenizer, Piece
from omlx_server.text.encoding.searching import begun_marker_length
from omlx_server.text.parts import CallStart, Part, Text, Thought, merged
from omlx_server.text.reasoning.harmony import HarmonySplitter
from omlx_server.text.reasoning.splitter import MarkerSplitter, make_splitter
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tool_calls.parser import ToolParser
from omlx_server.text.tool_calls.recipients import RecipientParser
from omlx_server.text.tool_calls.values import Numbering, tool_names


class StopMatcher:
    """`stopped`: the stop string that ended the text, shown with `include`. Raises ValueError
    for an empty stop string."""

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string can't be empty")
        self._stops = stops
        self._include = include
        self._held = ""
        self.stopped: str | None = None

    def add(self, text: str) -> str:
        """Return the text that can be shown now."""
        if self.stopped is not None:
            return ""
        text, self._held = self._held + text, ""
        starts = ((text.find(stop), stop) for stop in self._stops)
        matches = [(start + len(stop), -len(stop), stop) for start, stop in starts if start >= 0]
        if matches:
            end, _, self.stopped = min(matches)
            return text[: end if self._include else end - len(self.stopped)]
        shown = len(text) - begun_marker_length(text, self._stops)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        text, self._held = self._held, ""
        return text


class Delta(NamedTuple):
    """The result of one token. `piece`: the text of this token alone; None for none."""

    parts: tuple[Part, ...]
    piece: Piece | None


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token in OpenAI's logprobs. For a part of a character `text` is `bytes:` and the escaped
    bytes. `logprob` is None for the first token of a prompt."""

    text: str
    logprob: float | None
    bytes: list[int]


class AnswerParser:
    """Turns the tokens of one choice into parts.

    thinking  whether the newest token was in a thought
    made      characters outside thoughts so far
    shown     how many of these are certain, so that their logprobs can be released
    calls     calls so far
    """

    def __init__(self, tokenizer: Tokenizer, form: AnswerForm) -> None:
        numbering = Numbering(form.make_call_id)
        self._form = form
        self._detokenizer = Detokenizer(tokenizer.pieces, started=form.continues, shown=form.shown)
        self._splitter = _make_splitter(form, numbering)
        self._tools = ToolParser(form.family, form.tools, numbering) if form.family else None
        self._stops = StopMatcher(form.stops, form.include_stop)
        self._is_plain_text = not (self._splitter or form.family or form.stops or form.calls_only)
        self.thinking = self._splitter is not None and self._splitter.thinking
        self.has_call_too_many = False
        self.calls = 0
        self.made = 0
        self.shown = 0

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    @property
    def ended(self) -> bool:
        """Whether nothing more is shown: a stop string came, or a second call where only one
        may."""
        return self._stops.stopped is not None or self.has_call_too_many

    def add(self, token: int) -> Delta:
        piece = self._detokenizer.take(token)
        text = self._detokenizer.join(piece)
        if self._is_plain_text:  # what the steps below do where they look for nothing
            self.made += len(text)
            self.shown += len(text)
            return Delta((Text(text),) if text else (), piece)
        return Delta(self._show(self._read_calls(self._split_thoughts(text))), piece)

    def finish(self, *, cut: bool = False) -> tuple[Part, ...]:
        """Return the parts that were held back. `cut`: the answer ends for lack of tokens."""
        split = self._split_thoughts(self._detokenizer.finish())
        if self._splitter is not None:
            split += self._splitter.finish(cut=cut)
        read = self._read_calls(split)
        if self._tools is not None:
            read += self._tools.finish()
        shown = self._show(read)
        if self.ended:
            return shown
        return tuple(merged([*shown, *self._as_shown_text(self._stops.finish())]))

    def _split_thoughts(self, text: str) -> list[Part]:
        if self._splitter is None:
            return [Text(text)]
        parts = self._splitter.feed(text)
        self.thinking = self._splitter.thinking
        return parts

    def _read_calls(self, parts: Iterable[Part]) -> list[Part]:
        read: list[Part] = []
        for part in parts:
            if isinstance(part, Text):
                self.made += len(part.text)
                read += self._tools.feed(part.text) if self._tools else [part]
            else:
                read.append(part)
        return read

    def _show(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        shown = tuple(merged(part for read in parts for part in self._up_to_stop(read)))
        if self._tools is not None and not self.ended:
            self.shown = self.made
        return shown

    def _up_to_stop(self, part: Part) -> Iterator[Part]:
        if self.ended:
            return
        if isinstance(part, Text):
            yield from self._as_shown_text(self._stops.add(part.text))
            return
        if not isinstance(part, Thought):
            # No stop string reaches over the beginning of a call.
            yield from self._as_shown_text(self._stops.finish())
        if isinstance(part, CallStart):
            self.has_call_too_many = self.calls > 0 and not self._form.many
            self.calls += not self.has_call_too_many
        if not self.has_call_too_many:
            yield part

    def _as_shown_text(self, text: str) -> Iterator[Text]:
        if text and not self._form.calls_only:
            self.shown += len(text)
            yield Text(text)


def _make_splitter(
    form: AnswerForm, numbering: Numbering
) -> HarmonySplitter | MarkerSplitter | RecipientParser | None:
    names = tool_names(form.tools)
    if form.recipients:
        return RecipientParser(numbering, names, in_text=form.opening is Opening.PAST)
    calls = form.family.starts if form.family else ()
    style = form.style
    return make_splitter(style, form.opening, calls, numbering, names) if style else None


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def token_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenEntry:
    return piece_entry(tokenizer.token_bytes(token_id), logprob)


def piece_entry(piece: Piece | None, logprob: float | None) -> TokenEntry:
    """Return the entry of a chosen token: the bytes of all entries, joined, are the answer's
    text."""
    piece_bytes = piece.encode() if isinstance(piece, str) else piece or b""
    return TokenEntry(_entry_text(piece_bytes), logprob, list(piece_bytes))


def _entry_text(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
