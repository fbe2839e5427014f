"""A crowd of clients around one host: those that read to the end and check all they are told, and those that stall,
keep silent, send nonsense, or go away in the middle.
"""

import asyncio
import hashlib
import json
import os
import random
import signal
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from maka.runtime import App
from maka.runtime.backends.base import SendInput, text_of
from maka.runtime.backends.scripted import Emit, Never, Part, scripted_backend
from maka.runtime.host.endpoint import read_registration
from maka.runtime.scripted import Do, Fail, Say

from .hosts import PATIENCE, TESTS, HostProcess, Root
from .wire import hello

KIB: Final = 1024
#: What a subscriber may be made to wait for without being cut off, in looks of these seconds.
LOOK: Final = 0.1
_FACES: Final = "é𝄞🜁中"


# ---------------------------------------------------------------- in the host's process


def filling(size: int, seed: int = 7) -> str:
    """So many characters, of one to four bytes, that look alike nowhere."""
    chance = random.Random(seed)
    letters = 'abcdefghijklmnopqrstuvwxyz 0123456789\n"\\' + _FACES
    block = "".join(chance.choice(letters) for _ in range(8 * KIB))
    lines = (f"{number}:{block[number % 4096 :][: 4 * KIB]}" for number in range(size // (4 * KIB) + 1))
    return "".join(lines)[:size]


async def _opened() -> None:
    """Returns once there is a file called ``gate`` in the root."""
    await until(Path("gate").exists)


def play(input: SendInput) -> list[Part]:
    """``WORD …``: the first word says what is played."""
    word, _, rest = text_of(input.content).partition(" ")
    at = {"message_id": f"{input.run_id}-1"}
    match word:
        case "fill":
            # KIB thousand characters in pieces of so many.
            thousands, pieces = map(int, rest.split())
            return [Say(filling(thousands * KIB), pieces=pieces)]
        case "gated":
            # The same, and after a third of it waits until it is let go on.
            thousands, pieces = map(int, rest.split())
            say = Say(filling(thousands * KIB), pieces=pieces)
            deltas = [Emit("text_delta", {**at, "text": piece}) for piece in say.deltas]
            third = len(deltas) // 3
            return [
                *deltas[:third],
                Do(lambda _: _opened()),
                *deltas[third:],
                Emit("text_complete", {**at, "text": say.text}),
            ]
        case "plain":
            # As many KiB, one byte a character.
            return [Say("0123456789abcdef" * 64 * int(rest), pieces=int(rest) // 16)]
        case "paced":
            # So many pieces, one after the other.
            return [Say(filling(100 * int(rest)), pieces=int(rest), pause=0.003)]
        case "mixed":
            # Two blocks that come by turns.
            parts: list[Part] = []
            for number in range(40):
                parts += [
                    Emit("thinking_delta", {**at, "index": 0, "text": f"thought {number} {_FACES} "}),
                    Emit("text_delta", {**at, "index": 1, "text": f"said {number} {_FACES} "}),
                ]
            thought = "".join(f"thought {number} {_FACES} " for number in range(40))
            said = "".join(f"said {number} {_FACES} " for number in range(40))
            content = [{"kind": "thinking", "text": thought}, {"kind": "text", "text": said}]
            return [*parts, Emit("assistant_message", {**at, "content": content, "stop_reason": "end_turn"})]
        case "split":
            # A pair of surrogates that two deltas share, and one that stays alone.
            pieces_ = ["x\ud83d", "\ude00y", "\ud83d", "z𝄞"]
            return [
                *(Emit("text_delta", {**at, "text": piece}) for piece in pieces_),
                Emit("text_complete", {**at, "text": "x😀y\ud83dz𝄞"}),
            ]
        case "replaced":
            return [
                *(Emit("text_delta", {**at, "text": piece}) for piece in ("a first ", "attempt ", "at it")),
                Emit("text_complete", {**at, "text": "something else"}),
            ]
        case "broken":
            return [*(Emit("text_delta", {**at, "text": piece}) for piece in ("half ", "a ", "word")), Fail()]
        case "held":
            return ["held on to", Never()]
    return [f"said: {word} {rest}"]


app = App(
    backends={"scripted": scripted_backend(play)}, default_backend="scripted", model="m", permission_mode="bypass"
)


def serve(root: str, *, stall: int, looks: int, handshake: float, idle: float | None = None) -> int:
    """A host with short patience. At SIGUSR1 it leaves the names of its tasks in ``<root>/tasks``."""
    from maka.runtime.host import connection, server, watchers
    from maka.runtime.host.host import Host, HostDeadlines

    patient = partial(connection.Connection, looks=looks, look=LOOK, handshake=handshake)
    for module, name, value in ((watchers, "_LOOK", LOOK), (server, "Connection", patient)):
        assert hasattr(module, name)
        setattr(module, name, value)
    host = Host(root, app, deadlines=HostDeadlines(stall=stall), idle=idle)

    def tell() -> None:
        names = sorted(task.get_name() for task in asyncio.all_tasks())
        partly = Path(root, "tasks.partly")
        partly.write_text(json.dumps(names))
        partly.replace(Path(root, "tasks"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, tell)
        loop.add_signal_handler(signal.SIGTERM, host.shut_down)
        await host.serve()

    asyncio.run(main())
    return 0


_MAIN: Final = """
import sys
sys.path.insert(0, {tests!r})
from support.crowd import serve
sys.exit(serve(sys.argv[1], **{settings!r}))
"""


async def start(root: Root, *, stall: int = 8, looks: int = 100, handshake: float = 5.0, **more: Any) -> "Watched":
    """A host that is ready. ``stall`` and ``looks``, a tenth of a second apart: see Watcher and Connection."""
    settings = {"stall": stall, "looks": looks, "handshake": handshake, **more}
    return Watched(await root.start(code=_MAIN.format(tests=str(TESTS), settings=settings)))


class Watched:
    """A host's process, and what it holds."""

    def __init__(self, host: HostProcess) -> None:
        self.host = host
        self.pid = host.process.pid

    @property
    def endpoint(self) -> str:
        registration = read_registration(self.host.root)
        assert registration is not None
        return registration.endpoint

    def files(self) -> int | None:
        """Open files of the process; None where the system does not tell."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except FileNotFoundError:
            return None

    def memory(self) -> int:
        """Bytes that it held at most, so far; 0 where the system does not tell."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return 0
        [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        return int(peak) * KIB

    async def tasks(self) -> list[str]:
        told = self.host.root / "tasks"
        told.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        await until(told.exists)
        names: list[str] = json.loads(told.read_text())
        return names


async def quiet(observer: Any) -> None:
    """Waits until the observer is alone with the host, and nothing is asked but by it."""
    async with asyncio.timeout(PATIENCE):
        while (status := await observer.status())["connections"] > 1 or status["in_flight"] > 1:
            await asyncio.sleep(0.02)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- those that read


class Block:
    """What was told of one block of a message: its length and digest stand for the text."""

    def __init__(self) -> None:
        self.void()
        self.complete = False
        self.resets = 0

    def void(self) -> None:
        self.length = 0
        self.digest = hashlib.sha256()

    def take(self, delta: dict[str, Any]) -> None:
        assert not self.complete
        if delta.get("reset"):
            self.void()
            self.resets += 1
        assert delta["offset"] == self.length, (delta["offset"], self.length)
        raw = delta["text"].encode()
        assert len(raw) <= 64 * KIB
        self.length += len(delta["text"])
        self.digest.update(raw)
        self.complete = delta.get("complete", False)

    def is_whole(self, text: str) -> bool:
        return self.complete and (self.length, self.digest.digest()) == (
            len(text),
            hashlib.sha256(text.encode()).digest(),
        )


class Ledger:
    """Frames of one subscription, checked one by one: numbers without a gap, events in order, exact offsets."""

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self.snapshot = snapshot
        self.sequence = 0
        self.event = -1
        self.revision: int = snapshot["projection_revision"]
        self.position: int = snapshot["position"]
        self.blocks: dict[tuple[str, str], Block] = {}
        self.events: list[dict[str, Any]] = []
        #: As it began: of each block that streamed then, how much of it there was.
        self.begun = {(each["message_id"], each["kind"]): each["length"] for each in snapshot["streams"]}
        self.over: set[str] = set()
        self._note(snapshot)

    def take(self, sequence: int, type: str, body: dict[str, Any]) -> None:
        assert sequence == self.sequence + 1
        self.sequence = sequence
        if type == "delta":
            block = self.blocks.setdefault((body["message_id"], body["kind"]), Block())
            block.take(body)
        elif type == "event":
            assert body["seq"] > self.event
            self.event = body["seq"]
            self.events.append({key: value for key, value in body.items() if key in ("seq", "type", "bytes")})
        else:
            assert body["projection_revision"] > self.revision
            assert body["position"] >= self.position
            self.revision, self.position = body["projection_revision"], body["position"]
            self._note(body)

    def _note(self, snapshot: dict[str, Any]) -> None:
        root = snapshot["root_turn"]
        if root is not None and root["status"] in ("completed", "failed", "cancelled"):
            self.over.add(root["turn_id"])

    @property
    def length(self) -> int:
        """Characters that it was told of all blocks."""
        return sum(block.length for block in self.blocks.values())

    def assert_tells(self, message: dict[str, Any]) -> None:
        """It told the text of that message, each block to its end."""
        texts = {block["kind"]: block["text"] for block in message["content"] if block["kind"] in ("text", "thinking")}
        for kind, text in texts.items():
            block = self.blocks[message["message_id"], kind]
            assert block.is_whole(text), (kind, block.length, block.complete, len(text))


class Reader:
    """A client of its own that watches a session until its turn is over."""

    def __init__(self, root: Root, session_id: str | None = None) -> None:
        self.root = root
        self.session_id = session_id or root.session_id
        self.opened = asyncio.Event()
        self.ledger: Ledger
        self._news = asyncio.Event()

    async def told(self, length: int) -> None:
        """Waits until it was told so many characters."""
        async with asyncio.timeout(PATIENCE):
            while self.ledger.length < length:
                self._news.clear()
                await self._news.wait()

    def _reads_on(self, turn_id: str) -> bool:
        """What streams in the snapshot is still told to its end, although the turn may have its own by then."""
        blocks = self.ledger.blocks
        return turn_id not in self.ledger.over or any(
            key not in blocks or not blocks[key].complete for key in self.ledger.begun
        )

    async def read(self, turn_id: str) -> Ledger:
        async with self.root.client() as client:
            async with await client.subscribe(self.session_id) as watch:
                self.ledger = Ledger(watch.snapshot)
                self.opened.set()
                while self._reads_on(turn_id):
                    frame = await anext(watch)
                    self.ledger.take(frame.sequence, frame.type, frame.snapshot or frame.delta or frame.event)
                    self._news.set()
        return self.ledger


# ---------------------------------------------------------------- those that misbehave


class Raw:
    """Bytes over a socket, by hand. Nothing is read that is not asked for."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.path = path
        self.rest = b""
        self.answers: dict[str, dict[str, Any]] = {}

    async def begin(self, *, greets: bool = True) -> "Raw":
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, self.path)
        if greets:
            await self.send(hello())
            assert (await self.frame())["kind"] == "welcome"
        return self

    async def send(self, *frames: dict[str, Any]) -> None:
        await self.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the host has had enough

    async def ask(self, id: str, operation: str, **input: Any) -> None:
        await self.send({"kind": "request", "id": id, "operation": operation, "input": input})

    async def line(self, size: int = 64 * KIB) -> bytes:
        """The next line; empty at the end."""
        async with asyncio.timeout(PATIENCE):
            while b"\n" not in self.rest:
                try:
                    more = await asyncio.get_running_loop().sock_recv(self.socket, size)
                except ConnectionResetError:
                    more = b""
                if not more:
                    return b""
                self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    async def frame(self) -> dict[str, Any]:
        line = await self.line()
        assert line, "the connection has ended"
        frame: dict[str, Any] = json.loads(line)
        return frame

    async def frames(self) -> list[dict[str, Any]]:
        """All that come up to the end of the connection."""
        frames = []
        while line := await self.line():
            frames.append(json.loads(line))
        return frames

    async def answer(self, id: str) -> dict[str, Any]:
        """The response to a request, whatever comes before it; frames of subscriptions are left out."""
        while id not in self.answers:
            frame = await self.frame()
            if frame["kind"] == "response":
                self.answers[frame["id"]] = frame
        return self.answers.pop(id)

    def reset(self) -> None:
        """Goes away without an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.socket.close()


def ledger_of(opened: dict[str, Any], frames: list[dict[str, Any]]) -> tuple[Ledger, dict[str, Any] | None]:
    """The ledger of a subscription's raw frames, and its ``closed``, if that came."""
    ledger, closed = Ledger(opened["snapshot"]), None
    for frame in frames:
        if frame["kind"] != "frame" or frame["subscription_id"] != opened["subscription_id"]:
            continue
        assert closed is None, frame
        if frame["type"] == "closed":
            closed = frame
            assert frame["sequence"] == ledger.sequence + 1
        else:
            body = frame.get("snapshot") or frame.get("delta") or frame["event"]
            ledger.take(frame["sequence"], frame["type"], body)
    return ledger, closed
