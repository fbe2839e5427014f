"""Real hosts and real sockets: one queue for all clients, one winner of a race, and what the next host makes of what a
dead one left.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from maka.journal.digests import digest_of
from maka.journal.events import Draft
from support.hosts import Probe, Root, a_root, refused, until_over

Test = Callable[[Root], Coroutine[None, None, None]]


def content(text: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": text}]


@pytest.fixture
def go(tmp_path: Path) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        with a_root(tmp_path / "root") as root:
            asyncio.run(test(root))

    return run


def shows(turn_id: str, *statuses: str) -> Callable[[Any], bool]:
    def fits(frame: Any) -> bool:
        if frame.type != "projection" or frame.snapshot["root_turn"] is None:
            return False
        turn = frame.snapshot["root_turn"]
        return turn["turn_id"] == turn_id and (not statuses or turn["status"] in statuses)

    return fits


def test_subscribed_clients_share_one_queue_and_see_each_turn_end_before_the_next(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        host = await root.start()
        async with root.client("tui") as tui:
            async with root.client("desktop") as desktop:
                watches = [await each.subscribe("s1") for each in (desktop, tui)]
                probes = [Probe(watch) for watch in watches]
                for watch in watches:
                    assert watch.host_epoch == host.epoch
                    assert watch.snapshot["root_turn"] is None
                    assert watch.snapshot["projection_revision"] == 1
                    assert watch.snapshot["queue"]["steering"] == watch.snapshot["queue"]["followup"] == []

                started = await desktop.start_turn("s1", "continuity root " + "x" * 540, turn_id="first")
                run_id = started["turn"]["run_id"]
                for probe in probes:
                    live = await probe.wait_for(lambda frame: frame.type == "delta")
                    assert live.delta["turn_id"] == "first"
                    assert live.delta["run_id"] == run_id

                queued = await tui.submit_message(
                    "s1", content("quick after the first"), message_id="follow", placement="next_turn"
                )
                assert queued["disposition"] == "followup"
                for probe in probes:
                    await probe.wait_for(
                        lambda frame: (
                            frame.type == "projection"
                            and [each["message_id"] for each in frame.snapshot["queue"]["followup"]] == ["follow"]
                        )
                    )
            await probes[0].wait_for_failure("connection_closed")
            assert (await tui.status())["connections"] == 1

            ended = await probes[1].wait_for(shows("first", "completed"))
            following = await probes[1].wait_for(
                lambda frame: frame.type == "projection" and frame.snapshot["root_turn"]["turn_id"] != "first"
            )
            successor = following.snapshot["root_turn"]
            assert successor["session_id"] == "s1"
            frames = probes[1].frames
            assert frames.index(ended) < frames.index(following)
            await watches[1].close()
            await probes[1].done
            assert probes[1].failure is None
            await until_over(tui, "s1", successor["turn_id"])
            assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1))
            revisions = [each["projection_revision"] for each in probes[1].projections()]
            assert revisions == sorted(set(revisions))
        assert host.stop() == 0

        chain = root.admissions()
        assert [each["turn_id"] for each in chain] == ["first", successor["turn_id"]]
        assert [each["previous_root_turn_id"] for each in chain] == [None, "first"]
        assert chain[1]["input"] == {"content": content("quick after the first")}
        assert chain[1]["message_id"] == "follow"

    go(test)


def test_of_two_starts_at_once_one_wins(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        host = await root.start()
        async with root.client("desktop") as first, root.client("tui") as second:
            outcomes = await asyncio.gather(
                first.start_turn("s1", "ask", turn_id="a"),
                second.start_turn("s1", "ask", turn_id="b"),
                return_exceptions=True,
            )
            won = [outcome for outcome in outcomes if isinstance(outcome, dict)]
            lost = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            assert len(won) == len(lost) == 1
            assert getattr(lost[0], "code", None) == "session_busy"
            winner = won[0]["turn"]
            await first.stop_turn("s1", winner["turn_id"], winner["run_id"])
        assert host.stop() == 0

        chain = root.admissions()
        assert [each["turn_id"] for each in chain] == [winner["turn_id"]]
        assert chain[0]["previous_root_turn_id"] is None

    go(test)


def test_an_archived_session_refuses_a_turn_before_anything_of_it_is_durable(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        root.store.append("s1", [Draft("session/updated", {"patch": {"archived": True}})])
        host = await root.start()
        async with root.client("desktop") as client:
            assert await refused(client.start_turn("s1", "must not run", turn_id="t")) == "session_archived"
            assert (await client.status())["state"] == "ready"
        assert host.stop() == 0
        assert root.of_type("turn/admitted", "turn/start", "run/created", "user/message") == []

    go(test)


def test_a_killed_host_is_recovered_once_before_its_successor_is_ready(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        first = await root.start()
        async with root.client("desktop") as client:
            watch = await client.subscribe("s1")
            probe = Probe(watch)
            started = await client.start_turn("s1", "ask", turn_id="t")
            run_id = started["turn"]["run_id"]
            await probe.wait_for(shows("t", "running", "waiting_for_user"))
            shown = await probe.wait_for(
                lambda frame: frame.type == "projection" and frame.snapshot["interactions"]["pending"]
            )
            (pending,) = shown.snapshot["interactions"]["pending"]
            assert (pending["session_id"], pending["turn_id"], pending["run_id"]) == ("s1", "t", run_id)
            assert pending["kind"] == "question"
            interaction_id = pending["interaction_id"]
            first.kill()
            async with asyncio.timeout(10):
                await client.closed
            await probe.wait_for_failure("connection_closed")

        second = await root.start()
        async with root.client("tui") as client:
            watch2 = await client.subscribe("s1")
            recovered = await client.query_turn("s1", "t")
            assert recovered["status"] == "failed"
            assert recovered["failure_class"] == "app_restarted"
            assert watch2.host_epoch != watch.host_epoch
            assert watch2.snapshot["projection_revision"] == 1
            assert watch2.snapshot["root_turn"] == recovered
            assert watch2.host_epoch == second.epoch
            assert watch2.snapshot["queue"]["steering"] == watch2.snapshot["queue"]["followup"] == []
            closed = await client.query_interaction("s1", interaction_id)
            assert (closed["session_id"], closed["turn_id"], closed["run_id"]) == ("s1", "t", run_id)
            assert closed["status"] == "closed"
            assert closed["outcome"] == {"kind": "closure", "reason": "host_restarted"}
            answer = {"kind": "question_answer", "answers": [None] * len(pending["request"]["questions"])}
            assert await refused(client.answer_interaction("s1", interaction_id, answer)) == "already_resolved"
            await watch2.close()
        assert second.stop() == 0

        third = await root.start()
        async with root.client("run") as client:
            stable = await client.query_turn("s1", "t")
            assert stable == recovered
            assert stable["run_id"] == run_id
            assert await client.query_interaction("s1", interaction_id) == closed
        assert third.stop() == 0

        (end,) = root.of_type("turn/end")
        assert end.data["reason"] == {"kind": "interrupted"}
        (run,) = root.session().runs()
        assert run["failure_class"] == "app_restarted"

    go(test)


def test_a_host_that_is_stopped_ends_what_runs_before_it_gives_the_root_up(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        host = await root.start()
        async with root.client("desktop") as client:
            started = await client.start_turn("s1", "ask", turn_id="t")
            assert host.stop() == 0
            async with asyncio.timeout(10):
                await client.closed

        successor = await root.start()
        async with root.client("tui") as observer:
            stable = await observer.query_turn("s1", "t")
            assert stable["run_id"] == started["turn"]["run_id"]
            assert stable["status"] == "cancelled"
        assert successor.stop() == 0

        (end,) = root.of_type("turn/end")
        assert end.data["reason"] == {"kind": "aborted", "source": "host_shutdown"}
        (run,) = root.session().runs()
        assert run["status"] == "cancelled"
        assert run.get("failure_class") != "app_restarted"

    go(test)


def quoted(text: str) -> dict[str, Any]:
    return {"content": content(text), "quotes": [{"text": "what was said", "source": "elsewhere"}]}


def admitted(message: dict[str, Any], **more: Any) -> Draft:
    data: dict[str, Any] = {
        "turn_id": "t",
        "run_id": "r",
        "message_id": "m",
        "previous_root_turn_id": None,
        "execution": {"kind": "root"},
        "input": message,
        "input_digest": digest_of(message),
    }
    return Draft("turn/admitted", {**data, **more})


def run_header(**more: Any) -> dict[str, Any]:
    return {
        "run_id": "r",
        "invocation_id": "i",
        "turn_id": "t",
        "backend": "scripted",
        "model": "",
        "cwd": "/",
        "permission_mode": "bypass",
        "created_at": 1,
        "root": {"kind": "user"},
        **more,
    }


def test_an_admission_without_a_run_is_run_before_the_host_is_ready(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        message = quoted("ask")
        root.store.append("s1", [admitted(message)])
        host = await root.start()
        async with root.client("tui") as client:
            recovered = await client.query_turn("s1", "t")
            assert recovered["run_id"] == "r"
            assert recovered["status"] in ("running", "waiting_for_user")
            assert await refused(client.start_turn("s1", "must wait", turn_id="other")) == "session_busy"
            stopped = await client.stop_turn("s1", "t", "r")
            assert stopped["status"] == "cancelled"
        assert host.stop() == 0

        assert len(root.session().runs()) == 1
        (said,) = root.of_type("user/message")
        assert said.data["message_id"] == "m"
        assert said.data["quotes"] == message["quotes"]
        (end,) = root.of_type("turn/end")
        assert end.data["reason"]["kind"] == "aborted"

    go(test)


def test_a_message_that_is_there_is_the_admissions_own(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        message = quoted("recover what is there")
        # The order of an object's keys is no content.
        quotes = [dict(reversed(quote.items())) for quote in message["quotes"]]
        start = {"turn_id": "t", "run_id": "r", "invocation_id": "i", "turn": 1, "run": run_header()}
        said = {"message_id": "m", "turn_id": "t", "run_id": "r", "content": message["content"], "quotes": quotes}
        root.store.append(
            "s1",
            [
                admitted(message),
                Draft("turn/start", start),
                Draft("user/message", {**said, "source": {"kind": "user"}}),
            ],
        )
        host = await root.start()
        async with root.client("tui") as client:
            recovered = await client.query_turn("s1", "t")
            assert recovered["run_id"] == "r"
            assert recovered["status"] == "failed"
        assert host.stop() == 0

        (there,) = root.of_type("user/message")
        assert there.data["message_id"] == "m"
        assert there.data["quotes"] == message["quotes"]
        assert len(root.of_type("turn/end")) == 1

    go(test)


def test_a_message_that_is_missing_is_restored_before_its_run_is_ended(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        message = {"content": content("recover the admitted message")}
        root.store.append("s1", [admitted(message), Draft("run/created", {"run": run_header()})])
        host = await root.start()
        async with root.client("tui") as client:
            recovered = await client.query_turn("s1", "t")
            assert recovered["run_id"] == "r"
            assert recovered["status"] == "failed"
            assert recovered["failure_class"] == "app_restarted"
        assert host.stop() == 0

        assert len(root.session().runs()) == 1
        (said,) = root.of_type("user/message")
        assert said.data["message_id"] == "m"
        assert said.data["content"] == message["content"]
        assert len(root.of_type("turn/end")) == 1

    go(test)


KINDS = [
    "linked_child_initial",
    "linked_child_resume",
    "linked_child_provider_retry",
    "claimed_agent_graph_intent",
]


def test_linked_child_admissions_are_closed_without_an_identity_that_nobody_gave(go: Callable[[Test], None]) -> None:
    async def test(root: Root) -> None:
        for kind in KINDS:
            execution: dict[str, Any] = {"kind": kind}
            before: list[Draft] = []
            if kind in ("linked_child_resume", "linked_child_provider_retry"):
                execution["source_run_id"] = "source"
                header = run_header(run_id="source", turn_id="t0", invocation_id="i0")
                before = [
                    Draft(
                        "turn/start",
                        {"turn_id": "t0", "run_id": "source", "invocation_id": "i0", "turn": 1, "run": header},
                    ),
                    Draft(
                        "user/message",
                        {
                            "message_id": "m0",
                            "turn_id": "t0",
                            "run_id": "source",
                            "content": content("before"),
                            "source": {"kind": "user"},
                        },
                    ),
                    Draft("turn/end", {"turn_id": "t0", "run_id": "source", "reason": {"kind": "failed"}}),
                    Draft("run/settled", {"run_id": "source"}),
                ]
            root.create(
                kind,
                *before,
                admitted(
                    {"content": content(f"work of {kind}")},
                    execution=execution,
                    agent_id=f"agent-{kind}",
                    agent_name="Helper",
                ),
                child_of={"session_id": "s1", "run_id": "parent", "turn_id": "parent-turn"},
            )
        for _ in range(2):
            host = await root.start()
            assert host.stop() == 0

        for kind in KINDS:
            session = root.session(kind)
            run = next(row for row in session.runs() if row["run_id"] == "r")
            assert run["status"] == "failed"
            assert run["failure_class"] == "app_restarted"
            (start,) = [event for event in root.of_type("turn/start", session_id=kind) if event.data["turn_id"] == "t"]
            header = start.data["run"]
            assert header["agent_id"] == f"agent-{kind}"
            assert header["agent_name"] == "Helper"
            assert "workspace_identity" not in header
            lineage = {
                "linked_child_resume": ("source", None),
                "linked_child_provider_retry": (None, "source"),
            }.get(kind, (None, None))
            assert (header.get("resumed_from_run_id"), header.get("retried_from_run_id")) == lineage
            ends = [event for event in root.of_type("turn/end", session_id=kind) if event.data["turn_id"] == "t"]
            assert [end.data["reason"] for end in ends] == [{"kind": "interrupted"}]
            said = [event for event in root.of_type("user/message", session_id=kind) if event.data["turn_id"] == "t"]
            assert [each.data["message_id"] for each in said] == ([] if kind == KINDS[2] else ["m"])

    go(test)
