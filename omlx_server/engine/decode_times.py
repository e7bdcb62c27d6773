"""Times of one model's decodes, for its draft controller."""

import time

from omlx_server.compute.launched import Launched
from omlx_server.core.speculation.speculation import DraftController
from omlx_server.core.step import StepResult


class DecodeTimes:
    """Measures decodes for `speculation`. `plain_seconds` is the newest one without drafts."""

    def __init__(self, speculation: DraftController | None) -> None:
        self._speculation = speculation
        self._last_read_at = 0.0  # time.perf_counter() at which the newest tokens were read
        self.plain_seconds = 0.0

    def note(self, launched: Launched, result: StepResult) -> None:
        """Note that a step's tokens were read just now. One behind chunks can't be timed."""
        if not result.rows:
            return
        begun, self._last_read_at = max(launched.begun, self._last_read_at), time.perf_counter()
        seconds = None if launched.behind_chunks else self._last_read_at - begun
        is_plain = not launched.is_verifying and launched.drafted is None
        if is_plain and seconds is not None:
            self.plain_seconds = seconds
        if self._speculation is None:
            return
        if is_plain:
            self._speculation.note_plain_step(len(result.rows), seconds)
        else:
            self._note_drafts(self._speculation, launched, result, seconds)

    def _note_drafts(
        self,
        speculation: DraftController,
        launched: Launched,
        result: StepResult,
        seconds: float | None,
    ) -> None:
        rows, drafted, drafting_seconds = len(result.rows), launched.drafted, 0.0
        verifying_seconds = seconds
        if drafted is not None and seconds is not None:
            speculation.note_drafting(rows, drafted.forwards, drafted.seconds)
            drafting_seconds = drafted.seconds
            verifying_seconds = seconds - drafting_seconds
        accepted = sum(row.accepted for row in result.rows.values())
        speculation.note_verified_step(
            rows, launched.places, verifying_seconds, accepted, drafting_seconds
        )
