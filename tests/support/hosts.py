"""Real hosts, as processes of their own, and what tests ask of them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import maka
from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.runtime.host import HostError, connect
from maka.runtime.host.endpoint import read_registration

TESTS = Path(__file__).parent.parent
#: Seconds for anything that a process of a test does.
PATIENCE = 30.0

_MAIN = """
import sys
sys.path.insert(0, {tests!r})
from maka.runtime.host.process import main
sys.exit(main(sys.argv[1], {app!r}))
"""


class HostProcess:
    def __init__(self, root: Path, *, app: str = "support.host_app:app", code: str | None = None) -> None:
        self.root = root
        self.log = root / "test-host.log"
        root.mkdir(mode=0o700, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code or _MAIN.format(tests=str(TESTS), app=app), str(root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=root,
            )

    @property
    def epoch(self) -> str:
        registration = read_registration(self.root)
        assert registration is not None
        return registration.host_epoch

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Asks it to end, as ``SIGTERM`` does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        return self.log.read_text()


class Root:
    """A root with one session, and the hosts that were started on it."""

    def __init__(self, path: Path, session_id: str = "s1") -> None:
        self.path = path
        self.session_id = session_id
        self.hosts: list[HostProcess] = []

    @property
    def store(self) -> FileStore:
        return FileStore(self.path)

    def create(self, session_id: str | None = None, *events: Draft, **header: Any) -> None:
        """A session as a host makes one, with these events behind its header."""
        values = {
            "format": 1,
            "session_id": session_id or self.session_id,
            "created_by": {"name": "maka", "version": maka.__version__},
            "cwd": str(self.path),
            "backend": "scripted",
            "model": "",
            "permission_mode": "bypass",
            "tool_boundary": "t1_after_preflight_v1",
            **header,
        }
        self.store.create(Draft("session/header", values), events).close()

    async def start(self, **options: Any) -> HostProcess:
        """A host that is ready."""
        host = HostProcess(self.path, **options)
        self.hosts.append(host)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            registration = read_registration(self.path)
            if registration is not None and registration.pid == host.process.pid and registration.state == "ready":
                return host
            assert host.process.poll() is None, host.said()
            assert asyncio.get_running_loop().time() < deadline, host.said()
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def client(self, surface: str = "library", **options: Any) -> AsyncIterator[Any]:
        async with connect(self.path, surface=surface, timeout=PATIENCE, **{"reconnect": False, **options}) as client:
            yield client

    def session(self, session_id: str | None = None) -> Any:
        return maka.inspect(session_id or self.session_id, root=self.path)

    def events(self, session_id: str | None = None) -> list[Any]:
        return list(self.store.read(session_id or self.session_id))

    def of_type(self, *types: str, session_id: str | None = None) -> list[Any]:
        return [event for event in self.events(session_id) if event.type in types]

    def admissions(self) -> list[Any]:
        return [event.data for event in self.of_type("turn/admitted")]

    def end(self) -> None:
        for host in self.hosts:
            if host.process.poll() is None:
                os.kill(host.process.pid, signal.SIGCONT)
                host.kill()


@contextmanager
def a_root(path: Path, session_id: str = "s1") -> Iterator[Root]:
    root = Root(path, session_id)
    root.create()
    try:
        yield root
    finally:
        root.end()


class Probe:
    """Reads a subscription to its end, and lets a test wait for what it has read."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.frames: list[Any] = []
        self.failure: BaseException | None = None
        self._news = asyncio.Event()
        self.done = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self.watch:
                self.frames.append(frame)
                self._news.set()
        except Exception as error:
            self.failure = error
        finally:
            self._news.set()

    async def wait_for(self, fits: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE):
            seen = 0
            while True:
                for frame in self.frames[seen:]:
                    if fits(frame):
                        return frame
                seen = len(self.frames)
                assert not self.done.done(), self.failure
                self._news.clear()
                await self._news.wait()

    async def wait_for_failure(self, reason: str) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.done
        assert getattr(self.failure, "reason", None) == reason, self.failure

    def projections(self) -> list[Any]:
        return [frame.snapshot for frame in self.frames if frame.type == "projection"]

    def text(self, message_id: str | None = None) -> str:
        """The text that the deltas add up to, of one message or of all."""
        said: dict[tuple[str, int], str] = {}
        for frame in self.frames:
            if frame.type == "delta" and frame.delta["kind"] == "text":
                key = frame.delta["message_id"], frame.delta["index"]
                if frame.delta.get("reset"):
                    said[key] = ""
                assert len(said.get(key, "")) == frame.delta["offset"]
                said[key] = said.get(key, "") + frame.delta["text"]
        return "".join(text for (of, _), text in said.items() if message_id in (None, of))


async def until_over(client: Any, session_id: str, turn_id: str) -> Any:
    """The turn once it has its end."""
    async with asyncio.timeout(PATIENCE):
        while True:
            turn = await client.query_turn(session_id, turn_id)
            if turn["status"] in ("completed", "failed", "cancelled"):
                return turn
            await asyncio.sleep(0.02)


async def refused(call: Any) -> str:
    """The code that a request is refused with."""
    try:
        result = await call
    except HostError as error:
        return error.code
    raise AssertionError(f"it was not refused: {result}")
