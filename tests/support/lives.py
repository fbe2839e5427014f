"""An agent whose processes are killed, where tests say so; what it does outside leaves a line there, synced at once.

A life does one thing after the other (``STEPS``) with a session ``s`` and prints how each went. It may be held at a
point, which it prints as ``READY:<point>``, or dies at one of its file operations, counted from 1.
"""

import asyncio
import errno
import itertools
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import maka
from maka.journal import files
from maka.journal.codec import decode
from maka.journal.events import Event
from maka.runtime.app import App
from maka.runtime.backends.base import Backend, BackendContext, SendInput
from maka.runtime.backends.loop import loop_backend
from maka.runtime.continuation.failpoints import Failpoint, Hook, nowhere
from maka.runtime.continuation.shapes import ContinuationPlan
from maka.runtime.errors import RuntimeFailure
from maka.runtime.model import Chunk, Finish, ModelRequest, TextDelta, ToolCallChunk
from maka.runtime.sessions import SessionManager
from maka.runtime.tools import ToolContext, ToolOutput
from maka.runtime.tools.write_file import WriteFile

from .chain import check
from .legal import assert_legal
from .memory_journals import check_legal
from .nursery import Life, Nursery

SESSION: Final = "s"
TEXT: Final = "Please see to it."
ABANDONED: Final = "continuation_abandoned_before_provider_dispatch"
How = Literal["amid", "behind", "fails"]
#: Journals that were written to and not synced since, in a life: device and inode, whatever they are opened as.
_unsynced: Final[set[tuple[int, int]]] = set()
#: As they are before anything counts them, for what is written outside.
_open, _write, _fsync, _close = os.open, os.write, os.fsync, os.close


@attrs.frozen(kw_only=True)
class Script:
    """``hold``: the point to wait at for ever. ``wrong``: the number of the file operation that goes wrong, where
    the process ends ``amid`` it (of a write, half is done) or ``behind`` it, or which ``fails``: ``how``.

    ``tool``: what the model asks for where the user spoke last, ``effect`` or ``write_file``. ``asks``: how often,
    before it is done; ``together``: how many calls at once. ``recovery``: what ``effect`` declares; ``long``: how many
    characters it gives back beside the others. ``max_steps``: of a turn.

    For ``support.handing``: runs are handed over before the step that is number ``behind`` + 1 of theirs; ``own``: by a
    backend of its own, and not by the loop.
    """

    hold: str = ""
    wrong: int = 0
    how: How = "amid"
    tool: str = "effect"
    recovery: str = "never"
    asks: int = 1
    together: int = 1
    long: int = 0
    text: str = TEXT
    rerun: tuple[str, ...] = ()
    run_id: str | None = None
    max_steps: int | None = None
    behind: int = 0
    own: bool = False


class Place:
    """A directory with a root, the agent's working directory, and what it leaves outside of both.

    ``lives``: the function that its lives run. ``resting``: findings that a session in order may have.
    """

    lives = "support.lives:live"
    resting: Collection[str] = ("claim_indeterminate",)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.work = directory / "work"
        self.outside = directory / "outside"
        for path in (self.work, self.outside):
            path.mkdir(exist_ok=True)

    @property
    def journal(self) -> Path:
        return self.root / "sessions" / SESSION / "journal.jsonl"

    def note(self, name: str, **what: Any) -> None:
        """Durable when this returns."""
        fd = _open(self.outside / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _write(fd, json.dumps({**what, "unsynced": len(_unsynced)}).encode() + b"\n")
        _fsync(fd)
        _close(fd)

    def noted(self, name: str) -> list[dict[str, Any]]:
        path = self.outside / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # ------------------------------------------------------------ what tests look at

    @property
    def raw(self) -> bytes:
        return self.journal.read_bytes()

    @property
    def events(self) -> list[dict[str, Any]]:
        """As they are on disk, checked by the format alone."""
        return check(self.raw)

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def data(self, type_: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == type_]

    @property
    def reasons(self) -> list[str]:
        """How turns have ended, in order: the class where there is one, else the kind."""
        return [
            data["reason"].get("failure_class") or data["reason"]["kind"]
            for data in sorted(self.data("turn/end"), key=lambda data: self.turns[data["turn_id"]])
        ]

    @property
    def turns(self) -> dict[str, int]:
        """Numbers of turns by their id, in the order in which they began."""
        begun = (event["data"]["turn_id"] for event in self.events if event["type"] in _BEGINS)
        return {turn_id: number for number, turn_id in enumerate(dict.fromkeys(begun))}

    def files(self) -> dict[str, bytes]:
        """Every file below the root but locks and what may be made anew."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path.name not in ("snapshot.json", "journal.lock")
        }

    # ------------------------------------------------------------ to go back

    def saved(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.directory.rglob("*") if path.is_file()}

    def restore(self, saved: dict[Path, bytes]) -> None:
        for path in (self.work, self.outside):
            # The directories stay the same ones: that is what a workspace is known by.
            for entry in path.iterdir():
                entry.unlink()
        shutil.rmtree(self.root)
        for path, raw in saved.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        for path in (self.root, *self.root.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)

    # ------------------------------------------------------------ lives

    def life(self, nursery: Nursery, *steps: str, **script: Any) -> Life:
        return nursery.life(self.lives, str(self.directory), steps, attrs.asdict(Script(**script)))

    def lived(self, nursery: Nursery, *steps: str, **script: Any) -> list[str]:
        """What a life printed that went to its end, or died where something was to go wrong."""
        with self.life(nursery, *steps, **script) as life:
            lines = life.rest()
            ends = (-signal.SIGKILL, 0) if script.get("wrong") and script.get("how") != "fails" else (0,)
            assert life.code in ends, lines
            return lines

    def killed(self, nursery: Nursery, *steps: str, hold: str, **script: Any) -> list[str]:
        """A life that was killed at that point; what it had printed."""
        with self.life(nursery, *steps, hold=hold, **script) as life:
            lines = life.until(f"READY:{hold}")
            life.kill()
            assert life.code == -signal.SIGKILL
            return lines

    # ------------------------------------------------------------ what holds after each crash, once recovered

    def assert_sound(self, *, runs: int = 1, verdicts: Collection[str] = ("healthy",)) -> None:
        """``runs``: how often the body of one operation may have run that may run again."""
        events = self.events
        assert check_legal(_decoded(self.raw)) in verdicts
        by_type: dict[str, list[Any]] = {}
        for event in events:
            by_type.setdefault(event["type"], []).append(event["data"])
        for type_, key in _ONCE:
            assert_once(type_, [data[key] for data in by_type.get(type_, ())])
        assert_once("run/created", [data["run"]["run_id"] for data in by_type.get("run/created", ())])
        assert_once("boundary", [data["boundary_digest"] for data in by_type.get("continuation/claim", ())])
        users = {data["message_id"]: _text(data["content"]) for data in by_type.get("user/message", ())}
        assert len(users) == len(by_type.get("user/message", ()))
        for noted in self.noted("requests"):
            assert_legal(noted["messages"])
            assert_once("a request's message", said_by_users(noted["messages"]))
        for name in ("sends", "requests", "effects"):
            assert not any(noted["unsynced"] for noted in self.noted(name)), f"{name} before a barrier"
        sends = self.noted("sends")
        assert_once("dispatch of a run", [noted["run_id"] for noted in sends])
        assert_once("dispatch for a boundary", [noted["boundary"] for noted in sends if noted["boundary"] is not None])
        started = {data["run_id"] for type_ in _BEGINS for data in by_type.get(type_, ())}
        assert {noted["run_id"] for noted in sends} <= started, "a run was dispatched whose start was not durable"
        ended = {data["run_id"]: data["reason"].get("failure_class") for data in by_type.get("turn/end", ())}
        for noted in sends:
            assert ended.get(noted["run_id"]) not in _UNSENT, "a run was dispatched that counts as not dispatched"
        effects = Counter(noted["operation_id"] for noted in self.noted("effects"))
        recoveries = {data["operation_id"]: data["recovery"] for data in by_type.get("tool/call", ())}
        assert effects.keys() <= recoveries.keys(), "a body ran whose call was not durable"
        for operation_id, count in effects.items():
            assert count <= (runs if recoveries[operation_id] in _AGAIN else 1), f"a body ran {count} times"

    def assert_recovers(self, *, runs: int = 1) -> None:
        """Recovers in this process, twice: the second time not a byte is written. Leaves it healthy."""
        before = self.raw

        async def main() -> None:
            async with self.managing() as manager:
                await manager.plan_safe_boundary_continuation(SESSION)
                assert self.raw == before, "a plan has written"
                await manager.recover_interrupted_sessions()
                once = self.files()
                [again] = await manager.recover_interrupted_sessions()
                assert (again.state, again.appended, again.reconciled) == ("unchanged", 0, 0)
                assert self.files() == once

        asyncio.run(main())
        self._assert_in_order(runs)

    def _assert_in_order(self, runs: int) -> None:
        view = maka.inspect(self.journal)
        assert view.verdict == "healthy"
        assert {finding.code for finding in view.findings} <= {*self.resting}
        self.assert_sound(runs=runs)

    def managing(self, *, failpoint: Hook = nowhere, **script: Any) -> SessionManager:
        """A manager of this process."""
        return SessionManager(self.root, app=self.app(Script(**script)), continuation_failpoint=failpoint)

    def app(self, script: Script) -> App:
        return agent(self, script)

    def finished(self, *, runs: int = 1, **script: Any) -> list[str]:
        """Does what a person would do until nothing is left to go on with; what that was. Then all is sound."""
        done: list[str] = []

        async def main() -> None:
            async with self.managing(**script) as manager:
                await manager.recover_interrupted_sessions()
                while len(done) < 20:
                    done.append(await self.forward(manager, script.get("rerun", ())))
                    if done[-1] in _FINISHED:
                        return
                raise AssertionError(f"it comes to no end: {done}")

        asyncio.run(main())
        self._assert_in_order(runs)
        return done

    async def forward(self, manager: SessionManager, rerun: Collection[Any] = ()) -> str:
        """One thing that a person would do."""
        return await forward(manager, await manager.plan_safe_boundary_continuation(SESSION, rerun=rerun))


#: What a plan says of a session with nothing left to go on with.
_FINISHED: Final = ("resume_candidate_missing", "continuation_already_exists")
_AGAIN: Final = ("read_only", "idempotent")
#: What runs have failed with that were never sent to a backend.
_UNSENT: Final = (ABANDONED, "handoff_abandoned")
_BEGINS: Final = ("turn/start", "continuation/start")
#: Of these there is one for each value of that key.
_ONCE: Final = (
    ("turn/start", "turn_id"),
    ("turn/end", "turn_id"),
    ("run/settled", "run_id"),
    ("continuation/claim", "claim_id"),
    ("continuation/start", "claim_id"),
    ("continuation/start", "run_id"),
    ("tool/outcome", "call_seq"),
    ("tool/call", "operation_id"),
)


async def forward(manager: SessionManager, planned: ContinuationPlan) -> str:
    """One thing that a person would do about a plan; its reasons where that is nothing."""
    if planned.continuation is not None:
        stream = manager.resume_safe_boundary_continuation(planned)
        _ = [event async for event in stream]
        return f"resumed: {(stream.reason or {}).get('kind')}"
    word = ",".join(planned.rejection_reasons)
    if word == "continuation_started_indeterminate":
        for row in (await manager.read(SESSION)).continuations():
            if row["state"] == "started_indeterminate":
                await manager.settle_indeterminate_continuation(SESSION, row["claim_id"])
    elif word == "dangling_tool_state":
        events = _decoded(manager._store.path(SESSION).read_bytes())
        unknown = [event for event in events if event.type == "tool/result" and event.data["state"] == "unknown"]
        settled = {event.data["call_seq"] for event in events if event.type == "tool/outcome"}
        for event in unknown:
            if event.data["call_seq"] not in settled:
                await manager.settle_call(SESSION, event.data["operation_id"], ok=True)
    return word


def assert_once(what: str, values: list[Any]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    assert not twice, f"more than one {what} for {twice}"


def said_by_users(messages: list[dict[str, Any]]) -> list[str]:
    return [
        block["text"]
        for message in messages
        if message["role"] == "user"
        for block in message["content"]
        if block["kind"] == "text"
    ]


def _text(content: list[dict[str, Any]]) -> str:
    return "\n".join(block.get("text", "") for block in content)


def _decoded(raw: bytes) -> list[Event]:
    events, offset = [], 0
    for line in raw.splitlines():
        event = decode(line, offset)
        assert event is not None
        events.append(event)
        offset += len(line) + 1
    return events


# ---------------------------------------------------------------- the agent


def agent(place: Place, script: Script) -> App:
    def build(context: BackendContext) -> Backend:
        made = loop_backend(Model(place, script))(context)
        assert not isinstance(made, Awaitable)
        return Told(made, place)

    return App(
        backends={"loop": build},
        default_backend="loop",
        model="m",
        permission_mode="bypass",
        tools=[Effect(place, script), WriteFile()],
    )


class Told:
    """A backend, each dispatch to which is noted."""

    def __init__(self, backend: Backend, place: Place) -> None:
        self._backend = backend
        self._place = place
        self.stop = backend.stop
        self.dispose = backend.dispose
        self.prepare_run_composition = getattr(backend, "prepare_run_composition", None)

    def send(self, input: SendInput) -> Any:
        source = None if input.continuation is None else input.continuation.source
        self._place.note("sends", run_id=input.run_id, boundary=source and source["high_water"])
        return self._backend.send(input)


_FILE: Final = {"path": "out.txt", "content": "whole\n" * 9}


class Model:
    """Asks for the tool where the user spoke last, and ``asks`` times; then it is done."""

    provider = "scripted"

    def __init__(self, place: Place, script: Script) -> None:
        self._place = place
        self._script = script

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        script, messages = self._script, request.messages
        self._place.note("requests", messages=messages)
        first = messages[-1]["role"] == "user"
        await self._hold("request" if first else "between")
        asked = asked_for(messages)
        yield TextDelta("I see to it. " if first else "On it goes. ")
        if script.hold == "text":
            while b'"assistant/delta"' not in self._place.raw.splitlines()[-1]:
                await asyncio.sleep(0.01)
            await self._hold("text")
        if asked < script.asks * script.together:
            for number in range(asked, asked + script.together):
                arguments = _FILE if script.tool == "write_file" else {"n": number}
                yield ToolCallChunk(f"c{number}", script.tool, json.dumps(arguments), number - asked + 1)
            yield Finish("tool_use")
        else:
            yield TextDelta("It is done.")
            yield Finish("end_turn")

    async def _hold(self, point: str) -> None:
        await hold(self._script, point)


def asked_for(messages: list[dict[str, Any]]) -> int:
    """How many calls the model has asked for since the user spoke."""
    return sum(
        block["kind"] == "tool_call"
        for message in itertools.takewhile(lambda message: message["role"] != "user", reversed(messages))
        for block in message["content"]
    )


class Effect:
    """Leaves a line outside, which is all that it does, and finds it again."""

    name = "effect"
    description = "Does something."
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}  # noqa: RUF012

    def __init__(self, place: Place, script: Script) -> None:
        self._place = place
        self._script = script
        self.recovery: Any = script.recovery
        self.parallel_safe = script.together > 1
        self._ran = 0

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        await hold(self._script, "before_effect")
        self._place.note("effects", operation_id=context.operation_id, n=arguments["n"])
        self._ran += 1
        if self._script.hold == "effect" and self._ran < self._script.together:
            await asyncio.Event().wait()  # the last one says that they are all there
        await hold(self._script, "effect")
        return self._said(f"done {arguments['n']}")

    async def reconcile(self, arguments: dict[str, Any], operation_id: str) -> ToolOutput:
        if any(noted["operation_id"] == operation_id for noted in self._place.noted("effects")):
            return self._said(f"it was done {arguments['n']}")
        return ToolOutput([{"kind": "text", "text": "it was not done"}], "error")

    def _said(self, text: str) -> ToolOutput:
        return ToolOutput.of(text + "." * self._script.long)


async def hold(script: Script, point: str) -> None:
    if script.hold == point:
        say(f"READY:{point}")
        await asyncio.Event().wait()


def say(text: str) -> None:
    print(text, flush=True)


# ---------------------------------------------------------------- one life


def live(directory: str, steps: list[str], values: dict[str, Any]) -> None:
    """Runs in a process of its own."""
    run(Place(Path(directory)), Script(**values), steps, STEPS)


def run(place: Place, script: Script, steps: list[str], known: "Mapping[str, Step]") -> None:
    operations = Operations(script.wrong, script.how)
    if script.hold in _OF_A_WRITE:
        _hold_write(script.hold)
    operations.watch()
    asyncio.run(_live(place, script, steps, known))
    say(f"operations:{operations.count}")


@attrs.define
class Doing:
    place: Place
    manager: SessionManager
    script: Script
    planned: ContinuationPlan | None = None
    sent: int = 0

    def message(self) -> str:
        """The text of its next message."""
        self.sent += 1
        return self.script.text if self.sent == 1 else f"{self.script.text} ({self.sent})"


#: Does one thing; what there is to say of it.
Step = Callable[[Doing], Awaitable[object]]


async def _live(place: Place, script: Script, steps: list[str], known: Mapping[str, Step]) -> None:
    async def failpoint(point: Failpoint) -> None:
        await hold(script, point)

    manager = SessionManager(place.root, app=place.app(script), continuation_failpoint=failpoint)
    doing = Doing(place, manager, script)
    for step in (*steps, "close"):
        try:
            say(f"{step}:{await known[step](doing)}")
        except (maka.JournalError, RuntimeFailure) as error:
            say(f"{step}:{getattr(error, 'code', type(error).__name__)}")


async def _create(doing: Doing) -> str:
    return await doing.manager.create(session_id=SESSION, cwd=doing.place.work)


async def _send(doing: Doing) -> str:
    stream = doing.manager.send(SESSION, doing.message(), max_steps=doing.script.max_steps)
    _ = [event async for event in stream]
    return str((stream.reason or {}).get("kind"))


async def _recover(doing: Doing) -> str:
    [found] = await doing.manager.recover_interrupted_sessions()
    return found.state


async def _plan(doing: Doing) -> str:
    doing.planned = await doing.manager.plan_safe_boundary_continuation(
        SESSION,
        source_run_id=doing.script.run_id,
        rerun=doing.script.rerun,  # type: ignore[arg-type]
    )
    return ",".join(doing.planned.rejection_reasons) or doing.planned.disposition


async def _resume(doing: Doing) -> str:
    assert doing.planned is not None
    stream = doing.manager.resume_safe_boundary_continuation(doing.planned)
    _ = [event async for event in stream]
    return str((stream.reason or {}).get("kind"))


async def _stopped(doing: Doing) -> str:
    """``resume``, and a stop as soon as it has begun."""
    assert doing.planned is not None
    stream = doing.manager.resume_safe_boundary_continuation(doing.planned)
    await stream.started()
    await doing.manager.stop(SESSION)
    _ = [event async for event in stream]
    return str((stream.reason or {}).get("kind"))


async def _settle(doing: Doing) -> str:
    [claim] = [event["data"]["claim_id"] for event in doing.place.events if event["type"] == "continuation/claim"][-1:]
    return ",".join(event.type for event in await doing.manager.settle_indeterminate_continuation(SESSION, claim))


async def _forward(doing: Doing) -> str:
    return await doing.place.forward(doing.manager, doing.script.rerun)


async def _gun(doing: Doing) -> str:
    say("READY:gun")
    said: str = await asyncio.to_thread(sys.stdin.readline)
    return said.strip()


async def _close_manager(doing: Doing) -> None:
    await doing.manager.aclose()


STEPS: Final[dict[str, Step]] = {
    "create": _create,
    "send": _send,
    "recover": _recover,
    "plan": _plan,
    "resume": _resume,
    "stopped": _stopped,
    "settle": _settle,
    "forward": _forward,
    "gun": _gun,
    "close": _close_manager,
}


# ---------------------------------------------------------------- file operations


#: What is counted of the operating system's own, and of the writer's, which are bound already.
_OF_OS: Final = ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "rename", "replace", "link", "unlink", "mkdir")
_OF_FS: Final = ("write", "sync", "truncate")


class Operations:
    """Counts what is done to files, and lets one of it go wrong."""

    def __init__(self, number: int, how: How) -> None:
        self.count = 0
        self._number = number
        self._how = how
        self._numbers = itertools.count(1)

    def watch(self) -> None:
        for name in filter(vars(os).get, _OF_OS):
            setattr(os, name, self._counted(name, getattr(os, name)))
        for name in _OF_FS:
            setattr(files.RealFs, name, staticmethod(self._of_journal(name, getattr(files.RealFs, name))))
        vars(files)["sync"] = self._counted("sync", files.sync)

    def _of_journal(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        counted = self._counted(name, operation)

        def noted(*given: Any) -> Any:
            found = os.fstat(given[0])
            journal = (found.st_dev, found.st_ino)
            _unsynced.add(journal)
            done = counted(*given)
            if name == "sync":
                _unsynced.discard(journal)
            return done

        return noted

    def _counted(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            number = self.count = next(self._numbers)
            if number != self._number:
                return operation(*given, **named)
            if self._how == "fails":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self._how == "amid" and name == "write":
                _write(given[0], bytes(given[1])[: len(given[1]) // 2])
            try:
                return None if self._how == "amid" else operation(*given, **named)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

        return counted


#: Where a life is held in ``write_file``: before or behind the file's replacement.
_OF_A_WRITE: Final = {"before_replace": False, "after_replace": True}


def _hold_write(point: str) -> None:
    replace = os.replace

    def held(source: Any, target: Any, **named: Any) -> None:
        if _OF_A_WRITE[point]:
            replace(source, target, **named)
        say(f"READY:{point}")
        threading.Event().wait()

    vars(os)["replace"] = held
