"""Agents' sessions: prompts that begin with what others have, and grow turn by turn.

Each session draws its lengths and pauses from a source of its own, so that they are the same
whatever router and cache it meets. A session waits for its answer before it goes on: a slow fleet
gets fewer requests, not a longer queue.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from scripts.scaling.assumptions import Agents, Scale
from scripts.scaling.events import Events


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Simulated tokens that no other piece has, at one place of prompts: a system prompt, a
    question, an answer, what a tool gave."""

    tokens: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Request:
    """One turn: a prompt and its answer, of `answer_tokens` tokens. Whoever carries it out notes
    what it took: simulated tokens that were restored, those of them from the cold tier, and the
    seconds until the first token. `known`: what a cache without an end would have restored."""

    session: "Session"
    pieces: tuple[Piece, ...]
    answer: Piece
    answer_tokens: int
    arrived: float
    tokens: tuple[int, ...]
    length: int = 0
    cached: int = 0
    cold: int = 0
    known: int = 0
    machine: int = -1
    first_token: float | None = None

    def __post_init__(self) -> None:
        self.length = len(self.tokens)

    def forget_prompt(self) -> None:
        """Drop the prompt, of which only the `length` is needed after the answer."""
        self.pieces, self.tokens = (), ()


@dataclass(slots=True, eq=False)
class Session:
    """A conversation of one agent. `family` is the number of the session that a helper works for,
    or its own."""

    family: int
    source: random.Random
    turns: int
    pieces: list[Piece]
    ended: Callable[[], None]
    is_helper: bool = False
    done: int = field(default=0, init=False)


Send = Callable[[Request], None]


class Traffic:
    """All users of a fleet. `send` is called with each request; whoever has answered it calls
    `answered`."""

    def __init__(
        self, events: Events, agents: Agents, scale: Scale, users: int, seed: int, send: Send
    ) -> None:
        self._events, self._agents, self._scale = events, agents, scale
        self._send = send
        self._ids = count(1)
        self._numbers = count()
        self.sessions = 0
        self.turns = 0
        self._systems = [
            (self._piece(agents.tools_share * n), self._piece((1 - agents.tools_share) * n))
            for n in agents.system_tokens
        ]
        for user in range(users):
            source = random.Random(f"{seed} {user}")
            project = self._piece(agents.project_tokens)
            begin = partial(self._begin, user % len(self._systems), project, source)
            events.at(scale.ramp * source.random(), begin)

    def answered(self, request: Request) -> None:
        """Go on with the session of a request, whose last token was sent now."""
        session, agents = request.session, self._agents
        session.pieces.append(request.answer)
        session.done += 1
        self.turns += 1
        length = sum(len(piece.tokens) for piece in session.pieces) * self._scale.unit
        if session.done >= session.turns or length > agents.longest_session:
            session.ended()
        elif not session.is_helper and session.source.random() < agents.delegates:
            self._delegate(session)
        else:
            self._events.after(self._pause(session.source), partial(self._go_on, session))

    # -- sessions ------------------------------------------------------------------------

    def _begin(self, kind: int, project: Piece, source: random.Random) -> None:
        def again() -> None:
            pause = source.expovariate(1 / self._agents.between_seconds)
            self._events.after(pause, partial(self._begin, kind, project, source))

        own = random.Random(source.random())
        turns = 1 + int(own.expovariate(1 / self._agents.turns))
        pieces = [*self._systems[kind], project]
        session = Session(next(self._numbers), own, turns, pieces, again)
        self.sessions += 1
        self._ask(session, self._agents.task_tokens)

    def _delegate(self, parent: Session) -> None:
        """Start helpers at once; the parent goes on when the last of them has ended."""
        agents, left = self._agents, [self._agents.helpers]

        def ended() -> None:
            left[0] -= 1
            if not left[0]:
                self._go_on(parent)

        sources = [random.Random(parent.source.random()) for _ in range(agents.helpers)]
        for source in sources:
            pieces = [parent.pieces[0]]
            helper = Session(parent.family, source, agents.helper_turns, pieces, ended, True)
            self._ask(helper, agents.task_tokens)

    def _go_on(self, session: Session) -> None:
        self._ask(session, self._agents.result_tokens)

    def _ask(self, session: Session, mean: float) -> None:
        session.pieces.append(self._piece(self._length(session.source, mean)))
        out = self._length(session.source, self._agents.answer_tokens)
        pieces = tuple(session.pieces)
        tokens = tuple(token for piece in pieces for token in piece.tokens)
        now = self._events.now
        self._send(Request(session, pieces, self._piece(out), round(out), now, tokens))

    # -- drawn ---------------------------------------------------------------------------

    def _piece(self, tokens: float) -> Piece:
        return Piece(tuple(self._take(self._scale.units(tokens))))

    def _take(self, units: int) -> Iterator[int]:
        return (next(self._ids) for _ in range(units))

    def _length(self, source: random.Random, mean: float) -> float:
        sigma = self._agents.spread
        drawn = mean * source.lognormvariate(-sigma * sigma / 2, sigma)
        return min(max(drawn, 1.0), self._agents.longest_piece)

    def _pause(self, source: random.Random) -> float:
        asks_user = source.random() < self._agents.user_share
        mean = self._agents.user_seconds if asks_user else self._agents.tool_seconds
        return source.expovariate(1 / mean)
