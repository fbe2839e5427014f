"""The document of the protocol is true: its tables are the code's, and its conversation takes place."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

import maka
from maka.runtime import App, scripted_backend
from maka.runtime.host import connection, handlers, handshake, inputs, protocol, server, subscription, watchers
from maka.runtime.host.endpoint import read_registration
from maka.runtime.host.host import Host, HostDeadlines
from maka.runtime.host.operations import OPERATIONS
from maka.runtime.scripted import Say, Wait
from support import documents
from support.documents import PROTOCOL
from support.host_app import app
from support.wire import Raw

Json = dict[str, Any]


def section(title: str) -> str:
    return PROTOCOL.split(f"\n## {title}\n")[1].split("\n## ")[0]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_every_code_is_there_with_whether_it_can_be_tried_again() -> None:
    rows = documents.table(PROTOCOL, "code", "retryable", "means", "what to do")
    assert [(spans(row[0])[0], row[1] == "yes") for row in rows] == [*protocol.CODES.items()]


def test_the_limits_are_the_code_s() -> None:
    rows = documents.table(PROTOCOL, "what", "limit")
    assert [float(row[1]) for row in rows] == [
        protocol.MAX_FRAME,
        protocol.QUEUE_FRAMES,
        protocol.QUEUE_BYTES,
        protocol.HANDSHAKE,
        protocol.MAX_IN_FLIGHT,
        protocol.MAX_SUBSCRIPTIONS,
        server.MAX_CONNECTIONS,
        connection.LOOKS,
        protocol.MAX_TEXT,
        protocol.MAX_EVENT,
        subscription.MOST_ENTRIES,
        subscription.MOST_BYTES,
        HostDeadlines().stall,
        handlers._MOST_ROWS,
        handlers._PAGE,
        handlers._PIECE,
        protocol.MAX_QUEUED,
        protocol.MAX_CONTENT,
        protocol.MAX_QUEUED_BYTES,
    ]
    assert connection.LOOK == watchers._LOOK == 1
    assert handlers._MOST_ROWS == handlers._MOST_EVENTS


def test_every_reason_of_a_subscription_s_end_is_there() -> None:
    rows = documents.table(PROTOCOL, "`reason` of `closed`", "why", "what to do")
    assert {spans(row[0])[0] for row in rows} == protocol.CLOSED


def test_frames_of_a_client_have_the_keys_that_the_host_takes() -> None:
    rows = documents.table(PROTOCOL, "`kind`", "keys")
    told = {spans(row[0])[0]: spans(row[1]) for row in rows}
    required, optional = handshake._KEYS
    assert {*told["hello"], "kind"} == required | {f"{key}?" for key in optional}
    assert {*told["request"], "kind"} == connection._REQUEST


def field_cell(field: "attrs.Attribute[Any]") -> str:
    if field.default is attrs.NOTHING:
        return field.name
    return f"{field.name}?" if field.default is None else f"{field.name} = {json.dumps(field.default)}"


def test_every_operation_is_there_with_its_input() -> None:
    rows = documents.table(PROTOCOL, "operation", "is a", "input", "result")
    told = {spans(row[0])[0]: (row[1], spans(row[2])) for row in rows}
    assert told == {
        name: (row.mode, [field_cell(field) for field in attrs.fields(row.input)]) for name, row in OPERATIONS.items()
    }
    first = {name for name, row in OPERATIONS.items() if row.always}
    [early] = [row for row in documents.table(PROTOCOL, "state", "the host", "takes") if "recovering" in row[0]]
    assert {span for span in spans(early[2]) if span in OPERATIONS} == first


def test_each_key_takes_what_it_is_said_to_take() -> None:
    takes: dict[tuple[str, str], str] = {}
    for names, of, words in documents.table(PROTOCOL, "key", "of", "takes"):
        for name in spans(names):
            for operation in OPERATIONS if of == "all" else spans(of):
                takes[operation, name] = words
    for operation, row in OPERATIONS.items():
        for field in attrs.fields(row.input):
            assert takes[operation, field.name] == inputs.words_of(field).removesuffix(" or null"), field.name
    used = {field.name for row in OPERATIONS.values() for field in attrs.fields(row.input)}
    assert {name for _, name in takes} == used


def test_every_command_has_the_id_that_makes_it_the_same() -> None:
    rows = documents.table(PROTOCOL, "operation", "the id that makes it the same one")
    told = {name: spans(row[1])[0] for row in rows for name in spans(row[0])}
    changing = {name for name, row in OPERATIONS.items() if row.mode == "command"} | {"turn.stop", "turn.interrupt"}
    assert told.keys() == changing
    for name, key in told.items():
        field = attrs.fields_dict(OPERATIONS[name].input)[key]
        assert field.default is attrs.NOTHING, f"{name} can be asked without {key}"


def test_the_conversation_takes_place(tmp_path: Path) -> None:
    lines = [line for line in documents.block(PROTOCOL, "text").splitlines() if line != "…"]
    conversation = [(line[0], json.loads(line[2:])) for line in lines]
    goes_on = asyncio.Event()
    play = scripted_backend(
        [[Say("A greeting.", thinking=True), Wait(until=goes_on), Say("Good morning, Ada.", pieces=2)]]
    )

    async def main() -> None:
        host = Host(tmp_path, App(backends={"scripted": play}, default_backend="scripted"))
        async with served(host) as path:
            heard = Heard(Raw(*await asyncio.open_unix_connection(path)), root=host.root)
            for direction, frame in conversation:
                if direction == "→":
                    await heard.raw.send(heard.ours(frame))
                else:
                    await heard.expect(frame)
                    if frame.get("id") == "4":
                        goes_on.set()
            assert await heard.raw.rest() == []
            assert heard.numbers == [*range(1, len(heard.numbers) + 1)]

    asyncio.run(asyncio.wait_for(main(), 20))


#: Ids that are others each time; in the document they stand for those that are met here.
IDS = {"root", "host_epoch", "connection_id", "subscription_id", "run_id", "message_id"}
#: What is never the same.
ALWAYS_NEW = {"ts", "last_activity", "version", "sequence"}


class Heard:
    """What a host says, beside what the document has it say."""

    def __init__(self, raw: Raw, *, root: str) -> None:
        self.raw = raw
        self.numbers: list[int] = []
        self._ids = {"/srv/maka": root}
        self._replies: list[Json] = []
        self._told: list[Json] = []
        self._texts: dict[str, Json] = {}

    def ours(self, frame: Json) -> Json:
        return {key: self._ids.get(value, value) if isinstance(value, str) else value for key, value in frame.items()}

    async def expect(self, frame: Json) -> None:
        """Reads on until it is there. How much of a text or of what has changed is told at once is a matter of time."""
        if frame["kind"] != "frame":
            while not self._replies:
                await self._read()
            self._fits(frame, self._replies.pop(0))
        elif (delta := frame.get("delta")) is not None:
            end = delta["offset"] + len(delta["text"])
            while (whole := self._text(delta)) is None or not (
                len(whole["text"]) >= end and whole.get("complete", False) >= delta.get("complete", False)
            ):
                await self._read()
            self._fits({**delta, "offset": 0}, {**whole, "text": whole["text"][delta["offset"] : end]})
        else:
            while not (self._told and self._place(self._told[0]) == self._place(frame)):
                if self._told:
                    self._told.pop(0)
                else:
                    await self._read()
            self._fits(frame, self._told.pop(0))

    @staticmethod
    def _place(frame: Json) -> Any:
        """By what a frame of the document finds its own."""
        if frame["type"] == "event":
            return frame["event"]["seq"]
        turn = frame["snapshot"]["root_turn"]
        return None if turn is None else turn["status"]

    def _text(self, delta: Json) -> Json | None:
        """The block so far, if anything of it has come."""
        return self._texts.get(f"{delta['kind']} {delta['index']}")

    async def _read(self) -> None:
        frame = await self.raw.receive()
        if frame["kind"] != "frame":
            self._replies.append(frame)
            return
        self.numbers.append(frame["sequence"])
        if (delta := frame.get("delta")) is None:
            self._told.append(frame)
            return
        block = self._texts.setdefault(f"{delta['kind']} {delta['index']}", {**delta, "text": ""})
        assert delta["offset"] == len(block["text"])
        block |= {**delta, "offset": 0, "text": block["text"] + delta["text"]}

    def _fits(self, told: Any, heard: Any, key: str = "") -> None:
        """What the document leaves out may be anything."""
        if isinstance(told, dict):
            for name, value in told.items():
                self._fits(value, heard[name], name)
        elif isinstance(told, list):
            assert len(told) == len(heard), key
            for value, other in zip(told, heard, strict=True):
                self._fits(value, other, key)
        elif key in IDS:
            assert self._ids.setdefault(told, heard) == heard, key
            assert list(self._ids.values()).count(heard) == 1, f"{key} is that of another thing"
        elif key in ALWAYS_NEW:
            assert type(told) is type(heard), key
        else:
            assert told == heard, key


@asynccontextmanager
async def served(host: Host) -> AsyncIterator[str]:
    """Where a host listens that is ready; it is ended in order."""
    serving = asyncio.ensure_future(host.serve())
    while host.state != "ready" and not serving.done():
        await asyncio.sleep(0.005)
    registration = read_registration(host.root)
    assert registration is not None
    try:
        yield registration.endpoint
    finally:
        host.shut_down()
        await serving


# ---------------------------------------------------------------- shapes, of a host that serves


def result_of(operation: str) -> tuple[str | None, str]:
    """The shape that an operation's result has, or what its keys are said to be."""
    [cell] = [
        row[3] for row in documents.table(PROTOCOL, "operation", "is a", "input", "result") if operation in row[0]
    ]
    named = re.fullmatch(r"\[(\w+)\]\(#shapes\)", cell)
    return (named[1], "") if named else (None, "".join(re.findall(r"`([^`]*)`", cell)))


def outer_keys(notation: str) -> list[str]:
    """``{a, b?, c: {d}}`` → a, b?, c."""
    inner, depth = "", 0
    for character in notation.strip()[1:-1]:
        depth += (character in "{[") - (character in "}]")
        inner += character if depth == 0 and character not in "}]" else ""
    return [part.split(":")[0].strip() for part in inner.split(",") if part.strip()]


def fits(value: Json, told: list[str]) -> None:
    needed = {key for key in told if not key.endswith("?")}
    assert needed <= value.keys() <= {key.rstrip("?") for key in told}


def test_shapes_are_those_of_a_host_that_serves(tmp_path: Path) -> None:
    shapes = {
        row[0].split(" ")[0]: re.findall(r"`([^`]*)`", row[1]) for row in documents.table(PROTOCOL, "shape", "keys")
    }

    async def talk(client: Any) -> None:
        async def ask(operation: str, **input: Any) -> Json:
            result: Json = await client.request(operation, input)
            shape, notation = result_of(operation)
            fits(result, outer_keys(notation) if shape is None else shapes[shape])
            for key, kind in (("turn", "turn"), ("plan", "plan"), ("snapshot", "snapshot")):
                if key in result and isinstance(result[key], dict):
                    fits(result[key], shapes[kind])
            return result

        await ask("session.create", session_id="s", name="n")
        await ask("session.update", session_id="s", request_id="u", patch={"flagged": True})
        async with await client.subscribe("s") as watch:
            await ask("turn.start", session_id="s", turn_id="t1", content="ask")
            async for frame in watch:
                if frame.type == "event":
                    fits(frame.event, shapes["event"])
                if frame.type == "delta":
                    fits(frame.delta, shapes["delta"])
                if frame.snapshot is not None and frame.snapshot["interactions"]["pending"]:
                    break
        [row] = frame.snapshot["interactions"]["pending"]
        fits(row, shapes["interaction"])
        await ask("interaction.query", session_id="s", interaction_id=row["interaction_id"])
        answer = {"kind": "question_answer", "answers": [None, None, None]}
        await ask("interaction.answer", session_id="s", interaction_id=row["interaction_id"], answer=answer)
        while (await ask("turn.query", session_id="s", turn_id="t1"))["status"] != "completed":
            await asyncio.sleep(0.01)
        started = await ask("turn.message.submit", session_id="s", message_id="m1", content="hold")
        assert started["disposition"] == "turn_started"
        await ask("turn.message.submit", session_id="s", message_id="m2", content="quick", placement="next_turn")
        steered = await ask("turn.message.submit", session_id="s", message_id="m3", content="quick")
        assert (steered["disposition"], steered["turn_id"]) == ("steering", started["turn_id"])
        snapshot = (await ask("subscription.open", session_id="s", since=0))["snapshot"]
        fits(snapshot["session"], shapes["session"])
        fits(snapshot["root_turn"], shapes["turn"])
        for stream in snapshot["streams"]:
            fits(stream, shapes["stream"])
        for entry in snapshot["queue"]["steering"] + snapshot["queue"]["followup"]:
            fits(entry, shapes["entry"])
        assert {entry["message_id"] for entry in snapshot["queue"]["followup"]} == {"m2"}
        fits((await ask("host.status"))["active"][0], ["session_id", "turn_id", "run_id", "waiting", "queued"])
        await ask("queue.retract", session_id="s", retract_id="r1", message_ids=["m2"])
        run = {"session_id": "s", "turn_id": started["turn_id"], "run_id": started["run_id"]}
        # The turn may have taken what was to steer it.
        assert (await ask("turn.interrupt", **run, interrupt_id="i1"))["retracted"] in ([], ["m3"])
        await ask("turn.stop", **run, stop_id="s1")
        for row in (await ask("session.list"))["sessions"]:
            fits(row, shapes["row"])
        history = await ask("session.history", session_id="s", limit=5)
        for event in history["events"]:
            fits(event, shapes["event"])
        assert history["next"] == history["events"][0]["seq"]
        assert await ask("session.history", session_id="s", before=history["next"], limit=1000)
        await ask("session.event", session_id="s", seq=history["events"][0]["seq"])
        await ask("turn.resume.query", session_id="s")
        steps = [{"id": "a", "title": "t", "description": "d"}]
        plan = (await ask("plan.propose", session_id="s", request_id="p1", title="t", steps=steps))["plan"]
        ids = {"session_id": "s", "request_id": "p2", "proposal_id": plan["proposal_id"]}
        plan = (await ask("plan.approve", **ids, expected_revision=1, execution_id="e"))["plan"]
        fits(plan["execution"], ["execution_id", "status", "reason?"])
        await ask("plan.complete", session_id="s", execution_id="e", reason="done")
        fits((await ask("plan.query", session_id="s"))["plans"][0], shapes["plan"])
        await ask("session.fork", session_id="s", new_session_id="f", turn_id="t1")
        await ask("session.archive", session_id="f", request_id="a1")
        await ask("session.unarchive", session_id="f", request_id="a2")
        await ask("session.release", session_id="f")
        await ask("session.delete", session_id="f")
        await ask("host.shutdown")

    async def main() -> None:
        async with served(Host(tmp_path, app)), maka.connect(tmp_path) as client:
            await talk(client)

    asyncio.run(asyncio.wait_for(main(), 30))
