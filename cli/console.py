"""Standard output and standard error of the command; the only module here that knows what they are connected to.

Output never fails for what it says: bytes that the terminal's encoding has no place for are escaped. A reader that went
away (`| head`) is no error: `open` becomes False and the rest is dropped.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from . import text

#: Seconds before a terminal is told what takes so long, and between two updates.
_PATIENCE = 0.5
_INTERVAL = 0.2


class Console:
    """What a command writes to. `paint` colours text for standard output."""

    def __init__(self, out: TextIO | None, err: TextIO | None, environ: Mapping[str, str]) -> None:
        self._out, self._err = out, err
        self.open = out is not None
        self.paint: text.Painter = text.paint if _coloured(out, environ) else text.plain
        self.paint_err: text.Painter = text.paint if _coloured(err, environ) else text.plain
        self._patient = is_terminal(err) and environ.get("TERM") != "dumb"

    def write(self, lines: list[str]) -> None:
        """Lines of text to standard output."""
        self._bytes(_encoded("".join(f"{line}\n" for line in lines), self._out))

    def put(self, text: str) -> None:
        """Text to standard output, in the middle of a line: what streams."""
        self._bytes(_encoded(text, self._out))

    def document(self, value: Any) -> None:
        """One JSON document and a line feed to standard output."""
        import orjson

        try:
            raw = orjson.dumps(value)
        except TypeError:
            # A path whose bytes are not Unicode: the standard library writes its surrogates as escapes.
            import json

            raw = json.dumps(value, separators=(",", ":")).encode()
        self._bytes(raw + b"\n")

    def flush(self) -> None:
        if self.open and self._out is not None:
            with self._listening():
                self._out.flush()

    def listened(self) -> bool:
        """Is somebody still there to read standard output? A pipe tells so before anything is written to it."""
        if self.open and self._out is not None:
            import select

            with suppress(AttributeError, OSError, ValueError):  # no poll on this system, or no descriptor
                watch = select.poll()
                watch.register(self._out.fileno(), 0)
                if any(what & (select.POLLERR | select.POLLHUP) for _, what in watch.poll(0)):
                    self.open = False
                    _point_at_nothing(self._out)
        return self.open

    def say(self, sentence: str, style: str = "") -> None:
        """A sentence to standard error, made harmless."""
        if self._err is None:
            return
        try:
            shown = text.line(sentence)
            self._err.buffer.write(_encoded(f"{self.paint_err(shown, style)}\n", self._err))
            self._err.flush()
        except OSError:
            self._err = None

    def _bytes(self, raw: bytes) -> None:
        if self.open and self._out is not None:
            with self._listening():
                self._out.buffer.write(raw)
                self._out.flush()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.open = False
            _point_at_nothing(self._out)
        except OSError as error:
            self.open = False
            _point_at_nothing(self._out)
            raise OSError(error.errno, error.strerror, "standard output") from None

    @contextmanager
    def logged(self, name: str) -> Iterator[None]:
        """Says the warnings and errors of a logger, each as its sentence alone, until the block is left."""
        import logging

        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.say(record.getMessage(), "dim")  # type: ignore[method-assign]
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    @contextmanager
    def working(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Tells a person at a terminal, after a moment, that `what` is going on, until the block is left."""
        if not self._patient or self._err is None:
            yield
            return
        from threading import Event, Thread

        err, done = self._err, Event()

        def put(row: str) -> None:
            # A terminal that is gone is no reason to stop the work.
            with suppress(OSError, ValueError):
                err.write(row)
                err.flush()

        def tell() -> None:
            waited = _PATIENCE
            if done.wait(_PATIENCE):
                return
            while not done.wait(_INTERVAL):
                shown = text.line(what if isinstance(what, str) else what(), 60)
                put(f"\r{self.paint_err(shown, 'dim')} … {waited:.0f} s\x1b[K")
                waited += _INTERVAL
            put("\r\x1b[K")

        teller = Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()


def standard() -> Console:
    return Console(sys.stdout, sys.stderr, os.environ)


def is_terminal(stream: TextIO | None) -> bool:
    """Does a person sit there? Of none, and of one that is closed, nobody does."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _coloured(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    return is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _encoded(shown: str, stream: TextIO | None) -> bytes:
    return shown.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")


def _point_at_nothing(stream: TextIO | None) -> None:
    """So that the interpreter's own flush at exit finds somebody who listens."""
    if stream is not None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
