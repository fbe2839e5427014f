"""What the next host makes of what a dead one left: each row of the table, from journals made by hand, and from hosts
that were killed there.

What was made by hand is taken up by one host, looked at, and then by two more, which have nothing to do any more.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pytest

from maka.journal.digests import digest_of
from maka.journal.events import Draft
from maka.runtime.host import HostError
from support.builder import seal
from support.host_kills import ANSWER, Driver, Hosted, assert_sound, driven, hosted
from support.hosts import refused
from support.nursery import Nursery

OVER: Final = ("completed", "failed", "cancelled")
IDS: Final = {"turn_id": "t", "run_id": "r"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.host_kills") as nursery:
        yield nursery


# ---------------------------------------------------------------- journals made by hand


def content(text: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": text}]


def admitted(text: str = "hold it", **more: Any) -> Draft:
    message = {"content": content(text)}
    data = {
        **IDS,
        "message_id": "m",
        "previous_root_turn_id": None,
        "execution": {"kind": "root"},
        "input": message,
        "input_digest": digest_of(message),
    }
    return Draft("turn/admitted", {**data, **more})


def run(**more: Any) -> dict[str, Any]:
    return {
        **IDS,
        "invocation_id": "i",
        "backend": "scripted",
        "model": "",
        "cwd": "/",
        "permission_mode": "bypass",
        "created_at": 1,
        "root": {"kind": "user"},
        **more,
    }


CREATED: Final = Draft("run/created", {"run": run()})
STARTED: Final = Draft("turn/start", {**IDS, "invocation_id": "i", "turn": 1, "run": run()})


def said(message_id: str = "m", text: str = "hold it", kind: str = "user") -> Draft:
    data = {"message_id": message_id, **IDS, "content": content(text), "source": {"kind": kind}}
    return Draft("user/message", data)


def step(end: bool = False) -> Draft:
    return Draft("step/end" if end else "step/start", {**IDS, "step": 1})


def asked() -> Draft:
    questions = [{"id": "q", "question": "Which?", "options": [{"label": "This"}, {"label": "That"}]}]
    request = {"interaction_id": "q1", **IDS, "kind": "question", "request": {"questions": questions}}
    return Draft("interaction/requested", request)


def stopped(source: str = "user") -> Draft:
    return Draft("turn/stop_requested", {"stop_id": "x", **IDS, "source": source, "mode": "immediate"})


def accepted(message_id: str, text: str, turn_id: str | None = None) -> Draft:
    data = {
        "message_id": message_id,
        "placement": "next_turn" if turn_id is None else "current_turn",
        "disposition": "followup" if turn_id is None else "steering",
    }
    if turn_id is not None:
        data["turn_id"] = turn_id
    return Draft(
        "message/accepted", {**data, "content": content(text), "digest": digest_of({"content": content(text)})}
    )


def ended(kind: str = "completed") -> list[Draft]:
    return [Draft("turn/end", {**IDS, "reason": {"kind": kind}}), Draft("run/settled", {"run_id": "r"})]


RUNNING: Final = [admitted(), STARTED, said()]
ABORTED: Final = ("turn/start", "user/message", "turn/end", "run/settled")
RESTARTED: Final = {"status": "failed", "failure_class": "app_restarted", "reason": {"kind": "interrupted"}}


@attrs.frozen(kw_only=True)
class Row:
    """``drafts``: what is on the disk. ``turn``: of what is told of turn ``t`` at once. ``added``: the events that the
    next host has appended before anybody asked it anything; ``runs``: the turns that it has begun by itself, as
    ``(message id, previous turn)``, ``None`` as the message id where that is the admission's that was there.
    """

    drafts: list[Draft]
    turn: dict[str, Any]
    added: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    header: dict[str, Any] = attrs.Factory(dict)


def linked(kind: str, *events: str, **header: Any) -> Row:
    more: dict[str, Any] = {"execution": {"kind": kind}, "agent_id": "agent", "agent_name": "Helper"}
    return Row(
        drafts=[admitted(**more)],
        turn=RESTARTED,
        added=events or ("turn/start", "user/message", "turn/end"),
        header=header,
    )


CANCELLED: Final = {"status": "cancelled", "reason": {"kind": "aborted", "source": "user"}}
ROWS: Final = {
    "an admission": Row(drafts=[admitted()], turn={"status": "running"}, runs=("m",)),
    "an admission and a stop": Row(drafts=[admitted(), stopped()], turn=CANCELLED, added=ABORTED),
    "an admission, a run and a stop": Row(drafts=[admitted(), CREATED, stopped()], turn=CANCELLED, added=ABORTED),
    "a first child": linked("linked_child_initial"),
    "a child that was resumed": linked("linked_child_resume"),
    "a child that was tried again": linked("linked_child_provider_retry", "turn/start", "turn/end"),
    "a child of a graph": linked("claimed_agent_graph_intent"),
    "an admission and a run": Row(
        drafts=[admitted(), CREATED], turn=RESTARTED, added=("turn/start", "user/message", "turn/end")
    ),
    "a start without its message": Row(
        drafts=[admitted(), STARTED], turn=RESTARTED, added=("user/message", "turn/end")
    ),
    "a start": Row(drafts=RUNNING, turn=RESTARTED, added=("turn/end",)),
    "a step": Row(drafts=[*RUNNING, step()], turn=RESTARTED, added=("step/end", "turn/end")),
    "a question": Row(drafts=[*RUNNING, asked()], turn=RESTARTED, added=("interaction/resolved", "turn/end")),
    "an answer": Row(
        drafts=[*RUNNING, asked(), Draft("interaction/resolved", {"interaction_id": "q1", "outcome": ANSWER})],
        turn=RESTARTED,
        added=("turn/end",),
    ),
    "a stop": Row(drafts=[*RUNNING, stopped()], turn=CANCELLED, added=("turn/end", "session/note", "run/settled")),
    "a question and a stop": Row(
        drafts=[*RUNNING, asked(), stopped()],
        turn=CANCELLED,
        added=("interaction/resolved", "turn/end", "session/note", "run/settled"),
    ),
    "messages": Row(
        drafts=[*RUNNING, accepted("f1", "hold one"), accepted("f2", "hold two"), accepted("f3", "hold three")],
        turn=RESTARTED,
        added=("turn/end",),
        runs=("f1",),
        queue=("f2", "f3"),
    ),
    "steering that was not said": Row(
        drafts=[*RUNNING, accepted("f1", "hold one"), accepted("s1", "hold steering", "t")],
        turn=RESTARTED,
        added=("turn/end",),
        runs=("s1",),
        queue=("f1",),
    ),
    "steering that was said": Row(
        drafts=[
            *RUNNING,
            accepted("f1", "hold one"),
            accepted("s1", "hold steering", "t"),
            step(),
            step(end=True),
            said("s1", "hold steering", "steering"),
        ],
        turn=RESTARTED,
        added=("turn/end",),
        runs=("f1",),
    ),
    "messages that were taken back": Row(
        drafts=[
            *RUNNING,
            accepted("f1", "hold one"),
            accepted("f2", "hold two"),
            Draft("message/retracted", {"retract_id": "x", "message_ids": ["f1"]}),
        ],
        turn=RESTARTED,
        added=("turn/end",),
        runs=("f2",),
    ),
    "a stop that takes messages back": Row(
        drafts=[
            *RUNNING,
            accepted("f1", "hold one"),
            Draft("turn/stop_requested", {**stopped().data, "retract": ["f1"]}),
        ],
        turn=CANCELLED,
        added=("turn/end", "session/note", "run/settled"),
    ),
    "an end": Row(
        drafts=[*RUNNING, ended()[0]],
        turn={"status": "completed", "reason": {"kind": "completed"}},
        added=("run/settled",),
    ),
    "an end, and a message": Row(
        drafts=[*RUNNING, accepted("f1", "hold one"), accepted("f2", "hold two"), ended()[0]],
        turn={"status": "completed"},
        added=("run/settled",),
        runs=("f1",),
        queue=("f2",),
    ),
    "a settled end, and a message": Row(
        drafts=[*RUNNING, accepted("f1", "hold one"), *ended()], turn={"status": "completed"}, runs=("f1",)
    ),
    "a settled end, and a message in an archived session": Row(
        drafts=[
            *RUNNING,
            accepted("f1", "hold one"),
            *ended(),
            Draft("session/updated", {"patch": {"archived": True}}),
        ],
        turn={"status": "completed"},
        queue=("f1",),
    ),
    "a settled end": Row(drafts=[*RUNNING, *ended()], turn={"status": "completed"}),
}
SESSIONS: Final = {name: name.replace(" ", "-").replace(",", "") for name in ROWS}
#: Sessions of the same root that nobody can use: by what is wrong with them.
BROKEN: Final = {"broken-by-its-message": "admission_mismatch", "broken-by-its-run": "admission_mismatch", "broken": ""}


@attrs.define
class Look:
    """What a client was told of a session, and what stood in its journal then."""

    turn: Any = None
    snapshot: Any = None
    raw: bytes = b""
    extra: dict[str, Any] = attrs.Factory(dict)


@attrs.define
class World:
    """Looks at each session: as the first host is ready, and through each host behind it."""

    root: Hosted
    begun: dict[str, bytes] = attrs.Factory(dict)
    looks: list[dict[str, Look]] = attrs.Factory(list)
    statuses: list[dict[str, Any]] = attrs.Factory(list)
    broken: dict[str, list[Any]] = attrs.Factory(dict)

    def make(self) -> None:
        for name, row in ROWS.items():
            self.root.create(SESSIONS[name], *row.drafts, **row.header)
        wrong_message = {**said().data, "content": content("something else")}
        self._broken("broken-by-its-message", [admitted(), STARTED], "user/message", wrong_message)
        self._broken("broken-by-its-run", [admitted()], "run/created", {"run": run(run_id="another")})
        self.root.create("broken", *RUNNING)
        path = self.root.store.path("broken")
        path.write_bytes(path.read_bytes().replace(b"hold it", b"hold IT", 1))
        # With it nobody looks at what lies before.
        (path.parent / "snapshot.json").unlink()
        self.begun = self.root.journals()

    def _broken(self, session_id: str, drafts: list[Draft], type_: str, data: dict[str, Any]) -> None:
        """The last event is one that no append would take."""
        self.root.create(session_id, *drafts)
        path = self.root.store.path(session_id)
        raw = path.read_bytes()
        sum_, seq = raw[-35:-3].decode(), raw.count(b"\n")
        line, _ = seal(sum_, {"seq": seq, "ts": 1, "type": type_, "data": data})
        path.write_bytes(raw + line + b"\n")

    async def live(self) -> None:
        for number in range(4):
            await self.root.begin()
            async with driven(self.root, []) as driver:
                self.statuses.append(await driver.client.status())
                self.looks.append({name: await self._look(driver, SESSIONS[name]) for name in ROWS})
                if number == 0:
                    await self._try(driver)
                    await self._end(driver)
                for session_id in BROKEN:
                    self.broken.setdefault(session_id, []).append(await self._told(driver, session_id))
            await self.root.stop()

    async def _look(self, driver: Driver, session_id: str) -> Look:
        shown = await driver.snapshot(session_id)
        turn = await driver.client.query_turn(session_id, "t")
        return Look(turn=turn, snapshot=shown, raw=self.root.raw(session_id))

    async def _try(self, driver: Driver) -> None:
        """What can be asked of what was left, although it came too late."""
        for name in ("a question", "an answer", "a question and a stop"):
            session_id, look = SESSIONS[name], self.looks[0][name]
            look.extra["before"] = await driver.client.query_interaction(session_id, "q1")
            other = {"kind": "question_answer", "answers": ["That"]}
            look.extra["other"] = await refused(driver.client.answer_interaction(session_id, "q1", other))
            look.extra["after"] = await driver.client.query_interaction(session_id, "q1")
        session_id = SESSIONS["an admission"]
        look = self.looks[0]["an admission"]
        look.extra["other"] = await refused(driver.client.start_turn(session_id, "must wait", turn_id="other"))

    async def _end(self, driver: Driver) -> None:
        """Stops what runs, and what comes behind it, until nothing does."""
        for session_id in SESSIONS.values():
            shown = await driver.snapshot(session_id)
            while shown["session"]["status"] != "idle" or (
                shown["queue"]["followup"] and not shown["session"]["archived"]
            ):
                turn = shown["root_turn"]
                if turn["status"] == "running":
                    await driver.client.stop_turn(session_id, turn["turn_id"], turn["run_id"])
                shown = await driver.until(
                    session_id, lambda shown: shown["root_turn"]["status"] != "admitted" and shown
                )

    async def _told(self, driver: Driver, session_id: str) -> Any:
        asked: list[tuple[str, dict[str, Any]]] = [
            ("turn.query", {"turn_id": "t"}),
            ("turn.start", {"turn_id": "new", "content": "quick"}),
            ("turn.message.submit", {"message_id": "new", "content": "quick"}),
            ("session.update", {"request_id": "new", "patch": {"name": "new"}}),
            ("subscription.open", {}),
        ]
        told: list[tuple[str, str]] = []
        for operation, given in asked:
            try:
                answer = await driver.client.request(operation, {"session_id": session_id, **given})
                told.append(("none", str(answer)))
            except HostError as error:
                told.append((error.code, str(error)))
        return told


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> World:
    async def lived() -> World:
        async with hosted(tmp_path_factory.mktemp("table") / "root", nursery) as root:
            world = World(root)
            world.make()
            await world.live()
            return world

    return asyncio.run(lived())


def types(raw: bytes) -> list[str]:
    return [json.loads(line)["type"] for line in raw.splitlines()]


def data(raw: bytes, type_: str) -> list[dict[str, Any]]:
    return [event["data"] for event in map(json.loads, raw.splitlines()) if event["type"] == type_]


@pytest.mark.parametrize("name", ROWS)
def test_what_was_left_is_taken_up(world: World, name: str) -> None:
    row, session_id = ROWS[name], SESSIONS[name]
    look, begun = world.looks[0][name], world.begun[session_id]
    told = {key: look.turn.get(key) for key in row.turn}
    assert told == row.turn
    assert look.turn["run_id"] == "r"
    assert look.raw.startswith(begun)
    added = types(look.raw[len(begun) :])
    assert tuple(added[: len(row.added)]) == row.added
    queue = look.snapshot["queue"]
    assert [each["message_id"] for each in queue["followup"]] == list(row.queue)
    assert queue["steering"] == []
    assert look.snapshot["interactions"]["pending"] == []

    newest = look.snapshot["root_turn"]
    starts = data(look.raw, "turn/start")
    sent = [run_id for of_session, run_id in world.root.sends() if of_session == session_id]
    if not row.runs:
        assert added == list(row.added)
        # A child's turn is no root turn.
        assert newest == (None if name.startswith("a") and "child" in name else look.turn)
        if not row.queue:
            assert sent == []
        return
    [message_id] = row.runs
    assert newest["status"] == "running"
    assert sent[0] == newest["run_id"]
    [admission] = [each for each in data(look.raw, "turn/admitted") if each["turn_id"] == newest["turn_id"]]
    assert admission["message_id"] == message_id
    if message_id == "m":
        assert added[:2] == ["turn/start", "user/message"]
        assert newest == look.turn
        assert look.extra["other"] == "session_busy"
    else:
        assert added[len(row.added)] == "turn/admitted"
        assert admission["previous_root_turn_id"] == "t"
    assert starts[-1]["run_id"] == newest["run_id"]
    assert data(look.raw, "user/message")[-1]["message_id"] == message_id


def test_what_was_missing_of_a_turn_is_what_it_was_admitted_with(world: World) -> None:
    for name in ("an admission", "an admission and a stop", "an admission and a run", "a start without its message"):
        [message] = data(world.looks[0][name].raw, "user/message")
        assert (message["message_id"], message["content"]) == ("m", content("hold it"))
        assert message["source"] == {"kind": "user"}


def test_the_run_of_a_linked_child_has_no_identity_that_nobody_gave(world: World) -> None:
    for name in [name for name in ROWS if name.startswith("a") and "child" in name]:
        [start] = data(world.looks[0][name].raw, "turn/start")
        header = start["run"]
        assert (header["run_id"], header["agent_id"], header["agent_name"]) == ("r", "agent", "Helper")
        assert not {"workspace_identity", "resumed_from_run_id", "retried_from_run_id", "max_steps"} & header.keys()


def test_questions_keep_their_first_outcome(world: World) -> None:
    closure = {"kind": "closure", "reason": "host_restarted"}
    wanted = {"a question": closure, "an answer": ANSWER, "a question and a stop": closure}
    for name, outcome in wanted.items():
        extra = world.looks[0][name].extra
        assert extra["before"]["outcome"] == outcome
        assert extra["other"] == "already_resolved"
        assert extra["after"] == extra["before"]


@pytest.mark.parametrize("name", ROWS)
def test_the_next_hosts_have_nothing_to_do(world: World, name: str) -> None:
    second, third, fourth = (looks[name] for looks in world.looks[1:])
    assert second.raw == third.raw == fourth.raw == world.root.raw(SESSIONS[name])
    assert second.turn == third.turn == fourth.turn
    assert second.snapshot == third.snapshot == fourth.snapshot
    if not ROWS[name].runs:
        assert second.raw == world.looks[0][name].raw
        assert second.turn == world.looks[0][name].turn
    else:
        assert second.turn["status"] in OVER
    assert_sound(world.root, SESSIONS[name], rests=not second.snapshot["session"]["archived"])


def test_what_cannot_be_used_is_reported_by_itself(world: World) -> None:
    for status in world.statuses:
        assert {row["session_id"] for row in status["sessions"]["failed"]} == set(BROKEN)
        for row in status["sessions"]["failed"]:
            assert str(world.root.store.path(row["session_id"])) in row["message"]
            assert "maka journal" in row["message"]
    for session_id in BROKEN:
        assert world.root.raw(session_id) == world.begun[session_id]
        for told in world.broken[session_id]:
            assert {code for code, _ in told} == {"session_unavailable"}
            for _, sentence in told:
                assert str(world.root.store.path(session_id)) in sentence
                assert "maka journal" in sentence
