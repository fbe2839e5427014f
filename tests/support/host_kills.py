"""Hosts that die where a test says so, and clients that remember what they asked and what they were told.

A host is forked from a process that has imported all it needs. It dies at one of its file operations, counted from 1,
or around the write of an event. Each ``send`` to its backend leaves a line outside of the root, synced at once.
"""

import asyncio
import errno
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import maka
from maka.journal import files
from maka.runtime import App
from maka.runtime.backends.base import SendInput, text_of
from maka.runtime.backends.scripted import Faults, Never, Part, Question, ScriptedBackends, Tool
from maka.runtime.host import HostError, HostUnreachable, SubscriptionClosed
from maka.runtime.host.endpoint import read_registration
from maka.runtime.host.process import main
from maka.runtime.host.protocol import CODES
from maka.runtime.scripted import Wait

from .chain import check
from .host_app import COMPOSITION, QUESTIONS
from .hosts import PATIENCE, Root
from .legal import assert_legal
from .lives import How, Operations
from .nursery import Life, Nursery

#: As they are before anything counts them.
_write, _fsync = os.write, os.fsync
#: How often a session is asked for that can be used later.
TRIES: Final = 50
ANSWER: Final = {"kind": "question_answer", "answers": ["This"]}


@attrs.frozen(kw_only=True)
class Death:
    """``number``: of the file operation at which the host dies, or which fails: ``how``. ``at``: a part of the JSON of
    an event; it dies ``before`` the write of the ``count``-th that has it, or ``behind`` that event's sync, or that
    write finds the disk ``full``.
    """

    number: int = 0
    how: How = "amid"
    at: str = ""
    count: int = 1
    when: Literal["before", "behind", "full"] = "behind"


# ---------------------------------------------------------------- in the host's process

#: Where ``play`` leaves its lines, in a host's process.
_outside: Path | None = None


def serve(root: str, app: str, death: dict[str, Any]) -> None:
    """A host with an app of this module, to its end. Prints its exit code, and how many file operations it has done."""
    global _outside
    place = Path(root)
    _outside = place.parent / f"{place.name}.sends"
    log = os.open(place.parent / f"{place.name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    os.close(log)
    given = Death(**death)
    operations = Operations(given.number, given.how)
    operations.watch()
    if given.at:
        _die_at(given)
    code = main(root, f"support.host_kills:{app}")
    print(code, operations.count, flush=True)


def _die_at(death: Death) -> None:
    write, sync = files.RealFs.write, files.RealFs.sync
    wanted, left, doomed = death.at.encode(), [death.count], set[int]()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def written(fd: int, data: bytes) -> int:
        if left[0] > 0:
            left[0] -= bytes(data).count(wanted)
            if left[0] <= 0:
                if death.when == "before":
                    die()
                if death.when == "full":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                doomed.add(fd)
        return write(fd, data)

    def synced(fd: int) -> None:
        sync(fd)
        if fd in doomed:
            die()

    for name, operation in (("write", written), ("sync", synced)):
        setattr(files.RealFs, name, staticmethod(operation))


def play(input: SendInput) -> list[Part]:
    """As the app of the other tests, and quick: the first word says what is played."""
    assert _outside is not None
    fd = os.open(_outside, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    _write(fd, json.dumps([input.session_id, input.run_id]).encode() + b"\n")
    _fsync(fd)
    os.close(fd)
    word, _, rest = text_of(input.content).partition(" ")
    match word:
        case "ask":
            return [Question(QUESTIONS[:1]), "asked and answered"]
        case "hold":
            return ["holding", Never()]
        case "steps":
            return [part for number in range(int(rest)) for part in (Tool("look", {"n": number}), Wait(0.02))]
    return [f"done: {word} {rest}"]


class Backends(ScriptedBackends):
    """Somebody else can go on with what its runs have called."""

    tool_names = ("look",)  # type: ignore[assignment]


def _app(kind: type[ScriptedBackends]) -> App:
    backends = kind(play, repeat=False, steps=True, faults=[Faults()], composition=COMPOSITION)
    return App(backends={"scripted": backends}, default_backend="scripted", permission_mode="bypass")


app = _app(Backends)
#: It cannot finish what ``app`` has handed over, for it lacks the tool.
toolless = _app(ScriptedBackends)


# ---------------------------------------------------------------- in the test's


class Gone(Exception):
    """The host was killed."""


class Refused(Gone):
    """The host lives, and a script cannot go on with it."""


class Forked:
    """A host's process."""

    def __init__(self, root: Path, nursery: Nursery, app: str, death: Death) -> None:
        self.life: Life = nursery.life("support.host_kills:serve", str(root), app, attrs.asdict(death))
        #: What it prints up to its end.
        self.ended: asyncio.Future[list[str]] = asyncio.ensure_future(asyncio.to_thread(self.life.rest))

    async def kill(self) -> None:
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.life.pid, signal.SIGKILL)
        await self.ended
        self.life.__exit__()

    async def over(self) -> list[str]:
        """What it printed, once it has ended by itself."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.shield(self.ended)

    async def stop(self) -> int:
        """Asks it to end, as SIGTERM does; its exit code."""
        with suppress(ProcessLookupError):
            os.kill(self.life.pid, signal.SIGTERM)
        said = await self.over()
        return int(said[-1].split()[0]) if said else -signal.SIGKILL


class Hosted(Root):
    """A root, and its hosts, one after the other."""

    def __init__(self, path: Path, nursery: Nursery, session_id: str = "s") -> None:
        super().__init__(path, session_id)
        path.mkdir(mode=0o700, exist_ok=True)
        self.nursery = nursery
        self.host: Forked | None = None

    @property
    def log(self) -> str:
        path = self.path.parent / f"{self.path.name}.log"
        return path.read_text() if path.exists() else ""

    async def begin(self, *, app: str = "app", **death: Any) -> Forked:
        """A host that is ready, or Gone."""
        await self.kill()
        self.host = Forked(self.path, self.nursery, app, Death(**death))
        async with asyncio.timeout(PATIENCE):
            while True:
                found = read_registration(self.path)
                if found is not None and found.pid == self.host.life.pid and found.state == "ready":
                    return self.host
                if self.host.ended.done():
                    raise Gone
                await asyncio.sleep(0.002)

    async def kill(self) -> None:
        if self.host is not None:
            await self.host.kill()
            self.host = None

    async def stop(self) -> None:
        assert self.host is not None
        code = await self.host.stop()
        assert code == 0, self.log
        await self.kill()

    async def restart(self) -> Forked:
        await self.stop()
        return await self.begin()

    def raw(self, session_id: str | None = None) -> bytes:
        return self.store.path(session_id or self.session_id).read_bytes()

    def sends(self) -> list[tuple[str, str]]:
        """Session and run of each turn that a backend was sent, in order, over all hosts."""
        path = self.path.parent / f"{self.path.name}.sends"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(session_id, run_id) for session_id, run_id in map(json.loads, lines)]

    def journals(self) -> dict[str, bytes]:
        return {session_id: self.raw(session_id) for session_id in self.store.ids()}


@asynccontextmanager
async def hosted(path: Path, nursery: Nursery, session_id: str = "s") -> AsyncIterator[Hosted]:
    root = Hosted(path, nursery, session_id)
    try:
        yield root
    finally:
        await root.kill()


# ---------------------------------------------------------------- what a client remembers


@attrs.define
class Asked:
    """``answer``, or the ``code`` of a refusal; neither where the host was killed before."""

    operation: str
    input: dict[str, Any]
    answer: Any = None
    code: str | None = None

    @property
    def refused(self) -> bool:
        """For good: it is no use to ask it again."""
        return self.code is not None and not CODES[self.code]


class Driver:
    """A client that keeps what it asked. ``Gone`` where the host is killed under it."""

    def __init__(self, client: Any, asked: list[Asked]) -> None:
        self.client = client
        self.asked = asked

    async def ask(self, operation: str, **input: Any) -> Any:
        asked = Asked(operation, input)
        self.asked.append(asked)
        for _ in range(TRIES):
            await self.again(asked)
            if asked.code != "session_unavailable":
                break  # what may be taken later is asked again
            await asyncio.sleep(0.02)
        if asked.code is not None:
            raise Refused(asked)
        return asked.answer

    async def again(self, asked: Asked) -> None:
        """Raises Gone; a refusal is kept."""
        asked.answer = asked.code = None
        try:
            asked.answer = await self.client.request(asked.operation, asked.input)
        except HostUnreachable:
            raise Gone from None
        except HostError as error:
            if error.code == "host_draining":
                raise Gone from None
            asked.code = error.code

    async def snapshot(self, session_id: str) -> dict[str, Any]:
        return await self.until(session_id, lambda shown: shown)  # type: ignore[no-any-return]

    async def until(self, session_id: str, fits: Callable[[dict[str, Any]], Any]) -> Any:
        """What ``fits`` makes of the first snapshot of which it makes something."""
        async with asyncio.timeout(PATIENCE):
            try:
                async with await self._watching(session_id) as watch:
                    if found := fits(watch.snapshot):
                        return found
                    async for frame in watch:
                        if frame.type == "projection" and (found := fits(frame.snapshot)):
                            return found
            except HostUnreachable:
                pass
            except SubscriptionClosed as error:
                if error.reason not in ("connection_closed", "host_draining"):
                    raise
        raise Gone

    async def _watching(self, session_id: str) -> Any:
        for _ in range(TRIES):
            try:
                return await self.client.subscribe(session_id)
            except HostError as error:
                if error.code == "host_draining":
                    raise Gone from None
                if error.code != "session_unavailable":
                    raise
            await asyncio.sleep(0.02)
        raise Refused(session_id)


@asynccontextmanager
async def driven(root: Hosted, asked: list[Asked]) -> AsyncIterator[Driver]:
    try:
        async with root.client() as client:
            yield Driver(client, asked)
    except HostUnreachable:
        raise Gone from None


def lasting(operation: str, answer: Any) -> Any:
    """What of an answer is true for ever."""
    if operation in ("turn.start", "turn.resume.start"):
        # The turn is told as it stands, and another run may finish it.
        return answer["revision"], answer["turn"]["turn_id"]
    if operation == "plan.approve" or operation == "plan.propose":
        plan = answer["plan"]
        return {key: plan[key] for key in ("proposal_id", "revision", "title")}
    return answer


# ---------------------------------------------------------------- what holds of a session, whatever was killed


def assert_sound(root: Hosted, session_id: str, *, rests: bool = True) -> None:
    """``rests``: nothing is to be done in it any more."""
    view = maka.inspect(session_id, root=root.path)
    parent = None if view.header is None else view.header.parent
    events = check(root.raw(session_id), "0" * 32 if parent is None else parent["sum"])
    assert view.verdict == "healthy", view.findings
    assert_legal(view.messages())
    of = {type_: [event["data"] for event in events if event["type"] == type_] for type_ in _types(events)}

    for type_, key in _ONCE:
        assert_once(type_, [data[key] for data in of.get(type_, ()) if data.get(key) is not None])
    begun = [data["turn_id"] for data in of.get("turn/start", ())]
    begun += [data["turn_id"] for data in of.get("continuation/start", ()) if data["purpose"] == "resume"]
    ended = [data["turn_id"] for data in of.get("turn/end", ())]
    assert_once("turn", begun)
    if rests:
        assert sorted(begun) == sorted(ended)
        assert {data["turn_id"] for data in of.get("turn/admitted", ())} <= set(ended)
    _assert_queue(events, rests=rests)
    _assert_chain(events)

    sends = [run_id for of_session, run_id in root.sends() if of_session == session_id]
    assert_once("send", sends)
    runs = {data["run_id"] for type_ in ("turn/start", "continuation/start") for data in of.get(type_, ())}
    assert set(sends) <= runs
    if rests:
        over = {row["run_id"]: row["status"] for row in view.runs()}
        assert set(over.values()) <= {"completed", "failed", "cancelled", "handed_off"}, over


_ONCE: Final = (
    ("turn/admitted", "turn_id"),
    ("turn/admitted", "message_id"),
    ("turn/start", "turn_id"),
    ("turn/end", "turn_id"),
    ("run/settled", "run_id"),
    ("user/message", "message_id"),
    ("message/accepted", "message_id"),
    ("message/retracted", "retract_id"),
    ("turn/stop_requested", "stop_id"),
    ("interaction/requested", "interaction_id"),
    ("interaction/resolved", "interaction_id"),
    ("continuation/claim", "claim_id"),
    ("continuation/start", "run_id"),
    ("plan/approved", "execution_id"),
)


def _types(events: list[dict[str, Any]]) -> set[str]:
    return {event["type"] for event in events}


def assert_once(what: str, values: list[Any]) -> None:
    assert len(values) == len(set(values)), f"more than one {what}: {values}"


def _assert_queue(events: list[dict[str, Any]], *, rests: bool) -> None:
    """By the events alone: what was accepted is said once, in order, or was taken back."""
    waiting: dict[str, dict[str, Any]] = {}
    steered: set[str] = set()
    for event in events:
        data = event["data"]
        match event["type"]:
            case "message/accepted":
                waiting[data["message_id"]] = data
            case "turn/admitted" if data.get("message_id") in waiting:
                queued = sorted(waiting.values(), key=lambda each: each["disposition"] != "steering")
                assert data["message_id"] == queued[0]["message_id"], "it was not its turn"
                given = {key: waiting[data["message_id"]].get(key) for key in ("content", "quotes", "attachments")}
                assert data["input"] == {key: value for key, value in given.items() if value is not None}
                del waiting[data["message_id"]]
            case "user/message":
                if data["source"]["kind"] == "steering":
                    mine = [each for each in waiting.values() if each.get("turn_id") == data["turn_id"]]
                    assert data["message_id"] == mine[0]["message_id"], "it was not its turn"
                    assert data["content"] == mine[0]["content"]
                    steered.add(data["message_id"])
                    del waiting[data["message_id"]]
                else:
                    assert data["message_id"] not in waiting
            case "message/retracted" | "turn/stop_requested":
                for message_id in data.get("message_ids", data.get("retract", ())):
                    del waiting[message_id]
    assert not waiting or not rests, waiting


def _assert_chain(events: list[dict[str, Any]]) -> None:
    newest = None
    for event in events:
        data = event["data"]
        if event["type"] == "turn/admitted" and data["execution"]["kind"] == "root":
            assert data["previous_root_turn_id"] == newest
            newest = data["turn_id"]
        elif event["type"] == "continuation/claim" and data["purpose"] == "resume":
            newest = data["target_run"]["turn_id"]
    open_turn = None
    for event in events:
        if event["type"] == "turn/start" or (
            event["type"] == "continuation/start" and event["data"]["purpose"] == "resume"
        ):
            assert open_turn is None, "turns overlap"
            open_turn = event["data"]["turn_id"]
        elif event["type"] == "turn/end":
            assert open_turn == event["data"]["turn_id"]
            open_turn = None


def choices(name: str, count: int, of: list[Any]) -> Iterator[Any]:
    """``count`` of them, by chance that is always the same; all, where there are no more."""
    import random

    yield from of if len(of) <= count else sorted(random.Random(name).sample(of, count))
