"""The text of one choice, assembled token by token. Owned by its stream, on the asyncio thread.

Invariant: all `Delta.text` and the result of `finish`, joined, is `text`; without a stop, and with
`finish` called, that is `tokenizer.decode` of all tokens.
"""

from dataclasses import dataclass

from omlx_server.text.detokenizer import Detokenizer
from omlx_server.text.stops import StopMatcher
from omlx_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """`text` may be shown now. `piece`: the bytes that this very token gave to the content."""

    text: str
    stopped: str | None
    piece: bytes


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token as OpenAI's logprobs show it. `text` is not text where a character is cut. The first
    token of a prompt has no `logprob`."""

    text: str
    logprob: float | None
    bytes: list[int]


class Answer:
    """With `continues` it goes on within a text: a space that its first token begins with stays."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        include_stop: bool = False,
        *,
        continues: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, started=continues)
        self._stops = StopMatcher(stops, include_stop)
        self._shown: list[str] = []
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._shown)

    def add(self, token: int) -> Delta:
        piece = self._detokenizer.take(token)
        text = self._show(self._detokenizer.join(piece))
        return Delta(text, self.stopped, _as_bytes(piece))

    def finish(self) -> str:
        """The held rest. It can complete a stop string: see `stopped`."""
        rest = self._show(self._detokenizer.finish())
        held = self._stops.finish()
        self._shown.append(held)
        return rest + held

    def _show(self, text: str) -> str:
        result = self._stops.add(text)
        self._shown.append(result.text)
        self.stopped = self.stopped or result.stopped
        return result.text


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
