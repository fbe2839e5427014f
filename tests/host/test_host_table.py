"""What the next host makes of what a dead one left: each row of the table, from journals made by hand, and from hosts
that were killed there.

What was made by hand is taken up by one host, looked at, and then by two more, which have nothing to do any more.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from maka.journal.digests import digest_of
from maka.journal.events import Draft
from maka.runtime.host import HostError
from support.builder import seal
from support.host_kills import ANSWER, Driver, Gone, Hosted, assert_sound, driven, hosted
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


# ---------------------------------------------------------------- hosts that were killed there


@attrs.define
class Scene:
    """A session in which a host dies. Its turns and messages have its name in their ids."""

    root: Hosted
    name: str
    driver: Any = None
    run_id: str = ""

    @property
    def turn_id(self) -> str:
        return f"t-{self.name}"

    async def ask(self, operation: str, **input: Any) -> Any:
        return await self.driver.ask(operation, session_id=self.name, **input)

    async def start(self, text: str) -> None:
        self.run_id = (await self.ask("turn.start", turn_id=self.turn_id, content=text))["turn"]["run_id"]

    async def queue(self, *names: str) -> None:
        """Follow-ups that hold their turns, and steering, which begins with an s."""
        for name in names:
            placement = "current_turn" if name.startswith("s") else "next_turn"
            given = {"message_id": f"{name}-{self.name}", "content": f"hold {name}", "placement": placement}
            await self.ask("turn.message.submit", **given)

    async def answer(self) -> None:
        asked = await self.driver.until(self.name, lambda shown: [*shown["interactions"]["pending"], None][0])
        await self.ask("interaction.answer", interaction_id=asked["interaction_id"], answer=ANSWER)

    async def stop(self, **more: Any) -> None:
        await self.ask("turn.stop", turn_id=self.turn_id, run_id=self.run_id, stop_id="stop", **more)

    # what the next host makes of it

    async def turn(self) -> Any:
        return await self.driver.client.query_turn(self.name, self.turn_id)

    def data(self, type_: str) -> list[dict[str, Any]]:
        return data(self.root.raw(self.name), type_)

    def sent(self) -> list[str]:
        return [run_id for session_id, run_id in self.root.sends() if session_id == self.name]

    async def assert_restarted(self) -> None:
        turn = await self.turn()
        assert RESTARTED.items() <= turn.items()
        assert [each["reason"] for each in self.data("turn/end")][:1] == [{"kind": "interrupted"}]

    async def assert_follows(self, first: str | None, *waiting: str) -> None:
        """What was queued: the first runs and names the turn, the others wait."""
        shown = await self.driver.snapshot(self.name)
        entries = [each["message_id"] for each in shown["queue"]["followup"]]
        assert entries == [f"{name}-{self.name}" for name in waiting]
        assert shown["queue"]["steering"] == []
        admissions = self.data("turn/admitted")
        if first is None:
            assert shown["root_turn"]["turn_id"] == self.turn_id
            return
        assert [each["message_id"] for each in admissions[1:]] == [f"{first}-{self.name}"]
        assert admissions[1]["previous_root_turn_id"] == self.turn_id
        assert shown["root_turn"]["turn_id"] == admissions[1]["turn_id"]
        assert shown["root_turn"]["status"] == "running"
        assert self.sent()[-1] == admissions[1]["run_id"]


Doing = Callable[[Scene], Any]


@attrs.frozen
class Point:
    """``at``: a part of the event's JSON, with the session's name for ``NAME``. ``first``: what was asked of a host
    before, which has ended or was killed behind it.
    """

    at: str
    script: Doing
    check: Doing
    when: str = "behind"
    first: Doing | None = None


async def nothing(scene: Scene) -> None:
    """The host does by itself what there is to do."""


async def hold(scene: Scene) -> None:
    await scene.start("hold it")


async def question(scene: Scene) -> None:
    await scene.start("ask it")
    await scene.queue("f1")
    await scene.answer()


async def ask(scene: Scene) -> None:
    await scene.start("ask it")


async def steer(scene: Scene) -> None:
    await scene.start("ask it")
    await scene.queue("f1", "s1")
    await scene.answer()


async def crowd(scene: Scene) -> None:
    await scene.start("hold it")
    await scene.queue("f1", "f2", "f3")


async def halt(scene: Scene) -> None:
    await scene.start("hold it")
    await scene.queue("f1")
    await scene.stop()


async def take_back(scene: Scene) -> None:
    await scene.start("hold it")
    await scene.queue("f1")
    await scene.stop(retract=True)


async def hand(scene: Scene) -> None:
    await scene.start("steps 40")
    await scene.queue("f1")
    await scene.driver.client.shutdown(mode="handoff")
    assert scene.root.host is not None
    await scene.root.host.over()


async def resume(scene: Scene) -> None:
    found = await scene.driver.client.query_resume(scene.name)
    given = {"source_run_id": found["source_run_id"], "high_water": found["high_water"]}
    await scene.ask("turn.resume.start", turn_id="again", **given)


async def is_run(scene: Scene) -> None:
    [admission] = scene.data("turn/admitted")
    turn = await scene.turn()
    assert (turn["status"], turn["run_id"]) == ("running", admission["run_id"])
    assert scene.sent() == [admission["run_id"]]


async def is_restarted(scene: Scene) -> None:
    await scene.assert_restarted()


async def is_restarted_and_followed(scene: Scene) -> None:
    await scene.assert_restarted()
    await scene.assert_follows("f1")


async def is_not_resumed(scene: Scene) -> None:
    """What was claimed and not started is ended; who asks again is told so."""
    await scene.assert_restarted()
    turn = await scene.driver.client.query_turn(scene.name, "again")
    assert turn["status"] == "failed"
    assert turn["failure_class"] == "continuation_abandoned_before_provider_dispatch"
    [claim] = scene.data("continuation/claim")
    given = {"source_run_id": claim["source"]["run_id"], "high_water": claim["source"]["high_water"]}
    assert (await scene.ask("turn.resume.start", turn_id="again", **given))["turn"] == turn
    assert turn["run_id"] not in scene.sent()


async def is_closed(scene: Scene) -> None:
    await scene.assert_restarted()
    [asked], [resolved] = scene.data("interaction/requested"), scene.data("interaction/resolved")
    assert resolved["outcome"] == {"kind": "closure", "reason": "host_restarted"}
    ids = {"interaction_id": asked["interaction_id"], "answer": ANSWER}
    client = scene.driver.client
    assert await refused(client.request("interaction.answer", {"session_id": scene.name, **ids})) == "already_resolved"
    await scene.assert_follows(None)


async def is_answered(scene: Scene) -> None:
    await scene.assert_restarted()
    [resolved] = scene.data("interaction/resolved")
    assert resolved["outcome"] == ANSWER
    await scene.assert_follows("f1")


async def is_cancelled(scene: Scene) -> None:
    turn = await scene.turn()
    assert (turn["status"], turn["reason"]) == ("cancelled", {"kind": "aborted", "source": "user"})
    await scene.assert_follows("f1")


async def is_taken_back(scene: Scene) -> None:
    assert (await scene.turn())["status"] == "cancelled"
    await scene.assert_follows(None)


async def is_queued(scene: Scene) -> None:
    await scene.assert_restarted()
    await scene.assert_follows("f1", "f2")


async def is_queued_again(scene: Scene) -> None:
    await scene.assert_restarted()
    await scene.assert_follows("s1", "f1")


async def is_said(scene: Scene) -> None:
    await scene.assert_restarted()
    assert [each["message_id"] for each in scene.data("user/message")][1:2] == [f"s1-{scene.name}"]
    await scene.assert_follows("f1")


async def is_over(scene: Scene) -> None:
    assert (await scene.turn())["status"] == "completed"
    await scene.assert_follows("f1")


async def is_resumed(scene: Scene) -> None:
    [pause] = scene.data("handoff/pause")
    await scene.driver.until(scene.name, lambda shown: shown["root_turn"]["turn_id"] != scene.turn_id)
    turn = await scene.turn()
    assert (turn["status"], turn["run_id"]) == ("completed", pause["successor_run_id"])
    [claim], [start] = scene.data("continuation/claim"), scene.data("continuation/start")
    assert claim["claim_id"] == start["claim_id"] == pause["claim_id"]
    assert scene.sent()[:2] == [pause["run_id"], pause["successor_run_id"]]
    await scene.driver.until(scene.name, lambda shown: shown["root_turn"]["status"] == "running")
    await scene.assert_follows("f1")


async def is_in_doubt(scene: Scene) -> None:
    turn = await scene.turn()
    assert turn["status"] == "indeterminate"
    shown = await scene.driver.snapshot(scene.name)
    assert shown["session"]["status"] == "indeterminate"
    assert shown["root_turn"] == turn
    assert [each["message_id"] for each in shown["queue"]["followup"]] == [f"f1-{scene.name}"]
    before = scene.root.raw(scene.name)
    await scene.root.restart()
    async with driven(scene.root, []) as driver:
        scene.driver = driver
        assert await scene.turn() == turn
        assert scene.root.raw(scene.name) == before
        # Whoever wants to go on settles it.
        await scene.queue("f2")
        await driver.until(scene.name, lambda shown: shown["root_turn"]["status"] == "running")
        turn = await scene.turn()
        assert (turn["status"], turn["failure_class"]) == ("failed", "continuation_indeterminate")
        await scene.assert_follows("f1", "f2")


POINTS: Final = {
    "admitted": Point('"turn/admitted","data":{"turn_id":"t-NAME"', hold, is_run),
    "begun": Point('"turn/start","data":{"turn_id":"t-NAME"', hold, is_restarted),
    "asked": Point('"interaction/requested"', ask, is_closed),
    "answered": Point('"outcome":{"kind":"question_answer"', question, is_answered),
    "stopping": Point('"turn/stop_requested","data":{"stop_id":"stop","turn_id":"t-NAME"', halt, is_cancelled),
    "retracting": Point('"retract":["f1-NAME"]', take_back, is_taken_back),
    "accepted": Point('"message/accepted","data":{"message_id":"f2-NAME"', crowd, is_queued),
    "steering": Point('"user/message","data":{"message_id":"s1-NAME"', steer, is_queued_again, "before"),
    "steered": Point('"user/message","data":{"message_id":"s1-NAME"', steer, is_said),
    "ended": Point('"turn/end","data":{"turn_id":"t-NAME"', question, is_over),
    "settled": Point('"message_id":"f1-NAME","previous_root_turn_id"', question, is_over, "before"),
    "succeeded": Point('"message_id":"f1-NAME","previous_root_turn_id"', question, is_over),
    "paused": Point('"handoff/pause"', hand, is_resumed),
    "pausing": Point('"handoff/pause"', hand, is_restarted_and_followed, "before"),
    "taking-over": Point('"continuation/claim"', nothing, is_resumed, "before", first=hand),
    "claimed": Point('"continuation/claim"', nothing, is_resumed, first=hand),
    "created": Point('"type":"run/created"', nothing, is_resumed, first=hand),
    "started": Point('"continuation/start"', nothing, is_in_doubt, first=hand),
    "composed": Point('"run/composition"', nothing, is_in_doubt, first=hand),
    "stepping": Point('"type":"step/start"', nothing, is_restarted_and_followed, first=hand),
    "finished": Point('"turn/end","data":{"turn_id":"t-NAME"', nothing, is_over, first=hand),
    "resuming": Point('"continuation/claim"', resume, is_not_resumed, first=hold),
}


def test_hosts_that_were_killed_there(tmp_path: Path, nursery: Nursery) -> None:
    async def test() -> None:
        async with hosted(tmp_path / "root", nursery) as root:
            scenes = [(Scene(root, name), point) for name, point in POINTS.items()]
            for scene, point in scenes:
                root.create(scene.name)
                try:
                    await _played(root, scene, point)
                    await _ended(root)
                except BaseException as error:
                    error.add_note(f"killed where it was {scene.name}")
                    raise
            await root.begin()
            await root.stop()
            before = root.journals()
            for _ in range(2):
                await root.begin()
                await root.stop()
                assert root.journals() == before
            for scene, _ in scenes:
                assert_sound(root, scene.name)

    asyncio.run(test())


async def _played(root: Hosted, scene: Scene, point: Point) -> None:
    death = {"at": point.at.replace("NAME", scene.name), "when": point.when}
    if point.first is not None:
        await root.begin()
        async with driven(root, []) as scene.driver:
            await point.first(scene)
    with suppress(Gone):
        host = await root.begin(**death)
        async with driven(root, []) as scene.driver:
            await point.script(scene)
            await host.over()
    assert root.host is not None
    assert await root.host.over() == [], "it lives"
    await root.begin()
    async with driven(root, []) as scene.driver:
        await point.check(scene)


async def _ended(root: Hosted) -> None:
    """Stops what the host runs in any session, and takes back what waits."""
    async with driven(root, []) as driver:
        for row in (await driver.client.status())["active"]:
            await driver.client.interrupt_turn(row["session_id"], row["turn_id"], row["run_id"])
    await root.stop()


def test_a_handoff_that_nobody_here_can_finish_waits(tmp_path: Path, nursery: Nursery) -> None:
    async def test() -> None:
        async with hosted(tmp_path / "root", nursery) as root:
            scene = Scene(root, "s")
            root.create()
            await root.begin()
            async with driven(root, []) as scene.driver:
                await hand(scene)
            sealed = root.raw()
            for _ in range(2):
                await root.begin(app="toolless")
                async with driven(root, []) as scene.driver:
                    turn, shown = await scene.turn(), await scene.driver.snapshot("s")
                    assert turn["status"] == shown["session"]["status"] == "paused"
                    assert shown["root_turn"] == turn
                    assert [each["message_id"] for each in shown["queue"]["followup"]] == ["f1-s"]
                    client = scene.driver.client
                    assert await refused(client.start_turn("s", "quick", turn_id="other")) == "session_busy"
                    assert (await client.status())["sessions"]["failed"] == []
                await root.stop()
                assert root.raw() == sealed
            await root.begin()
            async with driven(root, []) as scene.driver:
                await is_resumed(scene)
            await _ended(root)
            assert_sound(root, "s")

    asyncio.run(test())


def test_what_could_not_be_written_while_it_was_recovered_is_tried_again(tmp_path: Path, nursery: Nursery) -> None:
    async def test() -> None:
        async with hosted(tmp_path / "root", nursery) as root:
            root.create("s", *RUNNING, accepted("f1", "hold one"))
            await root.begin(at='"turn/end","data":{"turn_id":"t"', when="full")
            async with driven(root, []) as driver:
                # Those who look into it meanwhile are in nobody's way.
                shown = await driver.until("s", lambda shown: shown["root_turn"]["turn_id"] != "t" and shown)
                assert shown["root_turn"]["status"] in ("admitted", "running")
                turn = await driver.client.query_turn("s", "t")
                assert RESTARTED.items() <= turn.items()
                await driver.until("s", lambda shown: shown["root_turn"]["status"] == "running")
                assert (await driver.client.status())["sessions"]["failed"] == []
            assert "cannot be used" in root.log
            assert "No space left" in root.log
            await _ended(root)
            assert_sound(root, "s")

    asyncio.run(test())


def test_a_start_behind_which_the_disk_was_full_rests_in_doubt(tmp_path: Path, nursery: Nursery) -> None:
    async def test() -> None:
        async with hosted(tmp_path / "root", nursery) as root:
            scene = Scene(root, "s")
            root.create()
            await root.begin()
            async with driven(root, []) as scene.driver:
                await hand(scene)
            await root.begin(at='"type":"step/start"', when="full")
            async with driven(root, []) as scene.driver:
                # Whoever watched while it ran is told.
                await scene.driver.until("s", lambda shown: shown["session"]["status"] == "indeterminate")
                await is_in_doubt(scene)
            await _ended(root)
            assert_sound(root, "s")

    asyncio.run(test())
