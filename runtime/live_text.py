"""Text that is journalled while it streams: joined, at once, then one piece for each stretch of time. No I/O."""

import asyncio
import contextlib

from ..journal.errors import JournalError
from .progress import Progress
from .record import Recorder


class LiveText:
    """Journals what a turn's ``streaming`` response grows by. ``seconds`` lie between two pieces of a block."""

    def __init__(self, recorder: Recorder, progress: Progress, seconds: float) -> None:
        self._recorder = recorder
        self._progress = progress
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._late = False

    def came(self) -> None:
        """The response has grown."""
        self._late = True
        if self._timer is None:
            self._write()

    def close(self) -> None:
        """The response is over: what has not been written by now stands in its message."""
        self._late = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        self._timer = None
        response = self._progress.streaming
        if not self._late or response is None:
            return
        self._late = False
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._write)
        for piece in response.pieces():
            data = {
                "run_id": self._progress.run_id,
                "step": self._progress.step,
                "message_id": self._progress.message_id,
                "index": piece.index,
                "kind": piece.kind,
                "text": piece.text,
            }
            # A preview that cannot be written stops nothing here; the journal's failure meets the next event.
            with contextlib.suppress(JournalError):
                self._recorder.add("assistant/delta", data, ignorable=True)
