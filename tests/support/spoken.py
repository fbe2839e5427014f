"""A host in a thread of the test, whose app plays by what is said to it; the command meets it as any other host."""

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maka.runtime import App, scripted_backend
from maka.runtime.backends.base import SendInput, text_of
from maka.runtime.backends.scripted import Boundary, Permission, Question, Tool
from maka.runtime.host.host import Host
from maka.runtime.scripted import End, Fail, Say, Wait

from .command import COMMAND

QUESTIONS = [
    {
        "id": "q1",
        "question": "Which colour?",
        "options": [{"label": "Red", "description": "as roses are"}, {"label": "Blue"}],
    },
    {"id": "q2", "question": "How many?", "options": [{"label": "One"}, {"label": "Two"}]},
]
#: What is said → what the turn does. Anything else is said back.
PARTS: dict[str, list[Any]] = {
    "look": [Tool("look", {"at": "the sky"}, "It is blue."), "I have looked."],
    "ask": [Question(QUESTIONS, lambda outcome: [f"You want {outcome.get('answers')}."])],
    "may I": [Permission("rm", {"path": "/"}, "it removes", then=lambda outcome: [str(outcome.get("decision"))])],
    "leave": [Boundary({"network": True}, "to fetch", then=lambda outcome: [str(outcome.get("decision"))])],
    "fail": [Fail("provider_quota", message="there is no credit left")],
    "long": ["So much", End("max_tokens")],
    "hang": [Tool("hang", {}, "done", seconds=1000.0)],
    "for ever": ["I wait. ", Wait()],
    "steps": [*[Tool("step", {}, "done", seconds=0.05) for _ in range(12)], "Done."],
}


def script(said: SendInput) -> list[Any]:
    text = text_of(said.content)
    return PARTS.get(text, [Say(f"You said {text}.", pieces=3)])


def app() -> App:
    return App(backends={"s": scripted_backend(script)}, default_backend="s", model="m", permission_mode="ask")


class Hosted:
    """``with Hosted(root) as host``: ready when entered, ended in order when left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.host = Host(self.root, app(), app_name="spoken:app")
        serving = asyncio.ensure_future(self.host.serve())
        while self.host.state != "ready" and not serving.done():
            await asyncio.sleep(0.005)
        if self.host.state == "ready":
            self._ready.set()
        await serving

    def __enter__(self) -> "Hosted":
        self._thread.start()
        assert self._ready.wait(20)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """In order; a second call does nothing."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.host.shut_down)
            self._thread.join(20)
            assert not self._thread.is_alive()


class Terminal:
    """The command with a person at its terminal."""

    def __init__(self, *words: object, env: Mapping[str, str] | None = None) -> None:
        self.fd, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "dumb", **(env or {})}
        command = [sys.executable, "-c", _AT_ITS_TERMINAL, *COMMAND, *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""
        self._from = 0

    def until(self, pattern: str) -> str:
        """Waits until that is shown, behind what was waited for before; everything up to there."""
        until = time.monotonic() + 20
        while (found := re.compile(pattern).search(self.shown, self._from)) is None:
            assert time.monotonic() < until, f"no {pattern!r} in {self.shown!r}"
            assert self._more(until - time.monotonic()), f"no {pattern!r} in {self.shown!r}"
        self._from = found.end()
        return self.shown[: found.end()]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Waits for the end; its exit code."""
        while self._more(20):
            pass
        return self.process.wait(20)

    def _more(self, seconds: float) -> bool:
        if not select.select([self.fd], [], [], max(seconds, 0))[0]:
            return False
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            return False
        self.shown += piece.decode(errors="replace").replace("\r\n", "\n")
        return bool(piece)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


def started(*words: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def shown(running: "subprocess.Popen[bytes]", text: str) -> None:
    """Waits until that stands at the beginning of its standard output."""
    assert running.stdout is not None
    seen = b""
    while text.encode() not in seen:
        piece = running.stdout.read(1)
        assert piece, running.communicate()
        seen += piece


#: Whoever leads a session and opens a terminal has its keys for signals.
_AT_ITS_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"

#: For hosts that are processes of their own.
made = app()
