"""The longest that there is to tell of a session fits into a frame, whatever its clients have asked for."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from maka.journal.digests import digest_of
from maka.journal.events import JsonObject
from maka.journal.views.interactions import MAX_PENDING
from maka.runtime.host import admission, projection
from maka.runtime.host.admission import Live
from maka.runtime.host.broadcast import Broadcast
from maka.runtime.host.inputs import SHORT, structure
from maka.runtime.host.protocol import MAX_FRAME, MAX_QUEUED, HostError, encode
from maka.runtime.host.subscription import Subscription
from maka.runtime.journals import OpenSession
from maka.runtime.session_events import SessionEvent
from support.host_app import app
from support.hosts import Root
from support.in_host import Life, a_host
from support.lineages import Story
from support.memory_journals import MemoryJournal

#: Of a character that has the most bytes in JSON.
LONG = "\x01" * SHORT
#: Lengths of the messages that are queued, as many of each as there is room for.
QUEUES = [(1,), (500, 1), (20_000, 1_000, 1)]


def submission(number: int, size: int, placement: str = "current_turn") -> dict[str, Any]:
    message_id = f"{number:04}{LONG[4:]}"
    return {"session_id": "s1", "message_id": message_id, "content": "\x01" * size, "placement": placement}


def answer(result: JsonObject) -> int:
    """How long the frame is."""
    return len(encode({"kind": "response", "id": "\x01" * 4096, "ok": True, "result": result}))


def full(sizes: Sequence[int]) -> Story:
    """A session in which all is as long as it is shown, and as many messages wait as it takes."""
    story = Story()
    settings: JsonObject = dict.fromkeys(("name", "cwd", "backend", "model"), "x" * 16_300)
    story.add("session/updated", {"patch": {**settings, "labels": ["x" * 100] * 155, "permission_mode": "ask"}})
    message = {"content": [{"kind": "text", "text": "hi"}]}
    ids = {"turn_id": LONG, "run_id": "r" * 32}
    admitted = {**ids, "message_id": LONG, "previous_root_turn_id": None, "execution": {"kind": "root"}}
    story.add("turn/admitted", {**admitted, "input": message, "input_digest": digest_of(message)})
    question = {"id": "q", "question": "x" * 16_200, "options": [{"label": "a"}, {"label": "b"}]}
    for number in range(MAX_PENDING):
        asked = {"interaction_id": f"{number:032}", **ids, "kind": "question", "request": {"questions": [question]}}
        story.add("interaction/requested", asked)
    number = 0
    for size in sizes:
        while True:
            asked = structure("turn.message.submit", submission(number, size))
            try:
                decision = admission.submit(story.state, Live(turn_id=LONG), asked, lambda: "i", client="x")
            except HostError:
                break
            [draft] = decision.drafts
            story.add(draft.type, draft.data)
            number += 1
    return story


@pytest.mark.parametrize("sizes", QUEUES)
def test_the_longest_snapshot_fits(sizes: tuple[int, ...]) -> None:
    story = full(sizes)

    async def main() -> JsonObject:
        async def at_once(_: MemoryJournal) -> None:
            pass

        session = OpenSession("s1", Path("/nonexistent"), MemoryJournal("s1", story.events, at_once))
        broadcast = Broadcast(
            opened=lambda: session,
            content=lambda _: projection.snapshot(story.state, "s1" * 64, running=LONG, unavailable="x" * 2_000),
            between=None,  # type: ignore[arg-type]
            number=lambda: 2**53,
            spawn=None,  # type: ignore[arg-type]
        )
        for index in range(200):
            delta = {"message_id": "m" * 32, "index": index, "text": "text"}
            broadcast.heard("r" * 32, SessionEvent("text_delta", "e", LONG, 1, delta))
        return broadcast.attach(Subscription("w", "s1", "epoch"), session)

    snapshot = asyncio.run(main())
    queue = snapshot["queue"]
    assert (MAX_QUEUED if sizes == (1,) else 4) <= len(queue["steering"]) <= MAX_QUEUED
    assert None not in [snapshot["session"][key] for key in ("name", "cwd", "backend", "model", "labels")]
    requests = [row["request"] for row in snapshot["interactions"]["pending"]]
    assert len(requests) == MAX_PENDING
    # Of those that there is no room for it is told that there are more of them.
    assert 4 < len([each for each in requests if each is not None]) < MAX_PENDING
    assert [row.get("truncated", False) for row in snapshot["interactions"]["pending"]] == [
        each is None for each in requests
    ]
    assert len(snapshot["streams"]) == 32
    size = answer({"subscription_id": "w" * 32, "host_epoch": "e" * 32, "sequence": 1, "snapshot": snapshot})
    assert size > MAX_FRAME / 2


async def held(life: Life) -> JsonObject:
    turn: JsonObject = (await life.ask("turn.start", session_id="s1", turn_id=LONG, content="hold"))["turn"]
    for number in range(MAX_QUEUED):
        await life.ask("turn.message.submit", **submission(number, 1, "next_turn"))
    return turn


def in_host(tmp_path: Path, test: Callable[[Life], Any]) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir(mode=0o700)
    root.create()

    async def main() -> None:
        async with a_host(root.path, app) as life:
            await test(life)

    asyncio.run(main())


def test_the_longest_answer_of_an_interrupt_fits(tmp_path: Path) -> None:
    async def test(life: Life) -> None:
        turn = await held(life)
        ids = {"turn_id": LONG, "run_id": turn["run_id"], "interrupt_id": LONG}
        stopped = await life.ask("turn.interrupt", session_id="s1", **ids)
        assert len(stopped["retracted"]) == MAX_QUEUED
        assert answer(stopped) > MAX_FRAME / 10

    in_host(tmp_path, test)


def test_all_that_waits_is_taken_back_in_one_answer(tmp_path: Path) -> None:
    async def test(life: Life) -> None:
        await held(life)
        taken = await life.ask("queue.retract", session_id="s1", retract_id=LONG)
        assert len(taken["retracted"]) == MAX_QUEUED
        assert answer(taken) > MAX_FRAME / 10

    in_host(tmp_path, test)


def test_plans_are_told_in_pages(tmp_path: Path) -> None:
    steps = [{"id": "1", "title": "see to it", "description": "x" * 150_000}]

    async def test(life: Life) -> None:
        for number in range(5):
            await life.ask("plan.propose", session_id="s1", request_id=str(number), title=f"plan {number}", steps=steps)
        told: list[JsonObject] = []
        following: int | None = 0
        while following is not None:
            page = await life.ask("plan.query", session_id="s1", offset=following)
            assert 1 <= len(page["plans"]) < 5
            answer(page)
            told += page["plans"]
            following = page["next"]
            assert following in (None, len(told))
        assert [plan["title"] for plan in told] == [f"plan {number}" for number in range(5)]
        assert all(plan["steps"] == steps and "truncated" not in plan for plan in told)
        assert (await life.ask("plan.query", session_id="s1", offset=9)) == {"plans": [], "next": None}

    in_host(tmp_path, test)


def test_a_plan_that_is_too_long_is_told_without_what_is_long(tmp_path: Path) -> None:
    async def test(life: Life) -> None:
        async def propose(title: str, description: str) -> JsonObject:
            steps = [{"id": "1", "title": "see to it", "description": description}]
            asked = {"session_id": "s1", "request_id": str(len(title)), "title": title, "steps": steps}
            plan: JsonObject = (await life.ask("plan.propose", **asked))["plan"]
            return plan

        plan = await propose("short", "x" * 700_000)
        assert (plan["title"], plan["steps"], plan["truncated"]) == ("short", None, True)
        plan = await propose("x" * 700_000, "x")
        assert (plan["title"], plan["steps"], plan["truncated"]) == (None, None, True)
        execution = {"proposal_id": plan["proposal_id"], "execution_id": "e"}
        approved = (await life.ask("plan.approve", session_id="s1", request_id="a", expected_revision=1, **execution))[
            "plan"
        ]
        assert approved["execution"] == {"execution_id": "e", "status": "active"}
        ended = await life.ask("plan.cancel", session_id="s1", execution_id="e", reason="x" * 700_000)
        assert answer(ended) < MAX_FRAME / 10
        assert ended["plan"]["execution"] == {"execution_id": "e", "status": "cancelled"}
        page = await life.ask("plan.query", session_id="s1")
        assert [each["truncated"] for each in page["plans"]] == [True, True]
        answer(page)

    in_host(tmp_path, test)


def test_a_session_with_a_long_name_is_listed(tmp_path: Path) -> None:
    async def test(life: Life) -> None:
        patch = {"name": "x" * 700_000, "labels": ["y" * 20_000]}
        # Open here, all of it is known.
        await life.ask("subscription.open", session_id="s1")
        await life.ask("session.update", session_id="s1", request_id="u", patch=patch)
        page = await life.ask("session.list")
        [row] = page["sessions"]
        assert (row["name"], row["labels"], page["next"]) == (None, None, None)
        answer(page)

    in_host(tmp_path, test)


def test_why_a_turn_ended_is_told_in_short_where_it_is_long() -> None:
    story = Story().start()
    reason = {"kind": "failed", "failure_class": "unknown", "message": "x" * 20_000}
    story.add("turn/end", {**story.ids, "reason": reason})
    story.add("run/settled", {"run_id": story.ids["run_id"]})
    said = projection.turn(story.state, "s1", "t1", running=None)
    assert said is not None
    assert (said["status"], said["reason"], said["failure_class"]) == ("failed", {"kind": "failed"}, "unknown")
    assert "message" not in said


@pytest.mark.parametrize("operation", ["turn.start", "turn.resume.start"])
def test_the_id_of_a_turn_that_a_client_makes_up_is_short(operation: str) -> None:
    given: dict[str, Any] = {"session_id": "s1", "turn_id": LONG}
    given |= {"content": "hi"} if operation == "turn.start" else {"source_run_id": "r" * 4096, "high_water": 1}
    structure(operation, given)
    with pytest.raises(HostError, match="1 to 256"):
        structure(operation, {**given, "turn_id": LONG + "x"})
    # One that a program made is found all the same.
    structure("turn.query", {"session_id": "s1", "turn_id": "t" * 4096})
