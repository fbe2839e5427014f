"""The document of the protocol is true: its tables are the code's, and its conversation takes place."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

import maka
from maka.runtime.host import connection, handshake, inputs, protocol, server
from maka.runtime.host.connection import Caller
from maka.runtime.host.host import Host
from maka.runtime.host.operations import OPERATIONS
from maka.runtime.host.protocol import HostError
from support import documents
from support.host_app import app
from support.wire import EPOCH, ROOT, FakeServices, serving

PROTOCOL = (documents.DOCS / "protocol.md").read_text(encoding="utf-8")
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
        protocol.MAX_QUEUED,
        protocol.MAX_CONTENT,
        protocol.MAX_QUEUED_BYTES,
    ]
    assert connection.LOOK == 1


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


def test_the_conversation_takes_place() -> None:
    lines = [line for line in documents.block(PROTOCOL, "text").splitlines() if line]
    sent = {
        id: frame for line in lines if (frame := json.loads(line[2:])) and (id := frame.get("id")) and line[0] == "→"
    }
    heard = {frame["id"]: frame for line in lines if line[0] == "←" and "id" in (frame := json.loads(line[2:]))}
    pushed = [frame for line in lines if line[0] == "←" and (frame := json.loads(line[2:]))["kind"] == "frame"]

    def answering(operation: str) -> Callable[[Any, Caller], Awaitable[Json]]:
        waiting = [heard[id] for id, frame in sent.items() if frame["operation"] == operation]

        async def answer(input: Any, caller: Caller) -> Json:
            frame = waiting.pop(0)
            if not frame["ok"]:
                raise HostError(frame["error"]["code"], frame["error"]["message"])
            if operation == "turn.start":

                async def push() -> None:
                    await caller.answered.wait()
                    for frame in pushed:
                        await caller.connection.send(frame)

                services.spawn(push(), "push")
            result: Json = frame["result"]
            return result

        return answer

    services = FakeServices()
    services.handlers = {name: answering(name) for name in ("session.create", "subscription.open", "turn.start")}

    async def main() -> None:
        async with serving(services) as wire:
            raw = await wire.connect()
            for line in lines:
                if line[0] == "→":
                    await raw.write(line[2:].encode() + b"\n")
                    continue
                expected, frame = json.loads(line[2:]), await raw.receive()
                if frame["kind"] == "welcome":
                    frame["connection_id"] = expected["connection_id"]
                    expected["server"]["version"] = maka.__version__
                assert frame == expected
            assert await raw.rest() == []

    asyncio.run(asyncio.wait_for(main(), 20))
    assert (sent_root(lines), pushed[0]["host_epoch"]) == (ROOT, EPOCH)


def sent_root(lines: list[str]) -> str:
    root: str = json.loads(lines[0][2:])["root"]
    return root


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
        fits((await ask("host.status"))["active"][0], ["session_id", "turn_id", "run_id"])
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
        host = Host(tmp_path, app)
        serving = asyncio.ensure_future(host.serve())
        while host.state != "ready":
            await asyncio.sleep(0.005)
        async with maka.connect(tmp_path) as client:
            await talk(client)
        await serving

    asyncio.run(asyncio.wait_for(main(), 30))
