"""What an operation raises, as its client is told it; and what operations refuse by themselves."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from maka.journal import errors as journal
from maka.runtime import errors as runtime
from maka.runtime.backends.scripted import Never, Question, scripted_backend
from maka.runtime.host.protocol import CODES, HostError
from maka.runtime.host.refusals import REFUSALS, refusal
from maka.runtime.scripted import Fail, Say
from support.in_host import OVER, Life, a_host
from support.managed import app_of

ERRORS: dict[str, tuple[BaseException, str]] = {
    "what a host refuses": (HostError("queue_full", "so many wait"), "queue_full"),
    "no session": (journal.SessionNotFound("there is none"), "not_found"),
    "no event": (journal.InvalidEvent("no", type="x", key="y"), "invalid_request"),
    "a conflict": (journal.JournalConflict("another"), "operation_conflict"),
    "locked": (journal.JournalLocked("another process has it"), "session_unavailable"),
    "damaged": (journal.JournalDamaged("it is damaged"), "session_unavailable"),
    "a failed write": (journal.JournalWriteError("full", errno=28, poisoned=False), "session_unavailable"),
    "quarantined": (runtime.SessionQuarantined("quarantined", permanent=False), "session_unavailable"),
    "a slow backend": (runtime.BackendTimeout("slow"), "session_unavailable"),
    "busy": (runtime.SessionBusy("busy"), "session_busy"),
    "archived": (runtime.SessionArchived("archived"), "session_archived"),
    "no backend": (runtime.BackendUnknown("none"), "invalid_request"),
    "an interaction": (runtime.InteractionRefused("gone", code="not_found"), "not_found"),
    "an answer too late": (runtime.InteractionRefused("gone", code="already_resolved"), "already_resolved"),
    "too many questions": (runtime.InteractionRefused("many", code="capacity_exceeded"), "session_busy"),
    "a run that is over": (runtime.InteractionRefused("over", code="run_closed"), "already_resolved"),
    "no plan": (runtime.PlanRefused("none", code="plan_unknown"), "not_found"),
    "another plan": (runtime.PlanRefused("other", code="plan_active"), "operation_conflict"),
    "a fork": (runtime.ForkRefused("no"), "operation_conflict"),
    "cancelled": (runtime.TurnCancelled("stopped"), "operation_conflict"),
    "parked": (runtime.ContinuationParked("parked", rejection_reasons=("x",)), "continuation_parked"),
    "closed": (runtime.KernelClosed("closed"), "host_draining"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_what_an_operation_raises_has_a_code_and_its_own_sentence(what: str) -> None:
    error, code = ERRORS[what]
    assert refusal("turn.start", error) == (code, str(error))


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a secret"), KeyError("x"), HostError("no_such_code", "a secret")],
    ids=lambda each: type(each).__name__,
)
def test_what_nobody_foresaw_goes_to_the_log_alone(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        code, message = refusal("turn.start", error)
    assert code == "internal_failure"
    assert "turn.start" in message
    assert "host.log" in message
    assert "secret" not in message
    [record] = caplog.records
    assert record.exc_info is not None


def test_every_code_that_is_told_is_one_of_the_protocol() -> None:
    assert {code for _, code in REFUSALS if isinstance(code, str)} <= set(CODES)


def test_what_an_error_is_made_of_stands_behind_it() -> None:
    kinds = [kind for kind, _ in REFUSALS]
    for place, kind in enumerate(kinds):
        assert not any(issubclass(kind, before) for before in kinds[:place])


# ---------------------------------------------------------------- operations, asked without a wire


def play(given: Any) -> Any:
    match given.text.partition(" ")[0]:
        case "hold":
            return Never()
        case "ask":
            return Question("Which?")
        case "fail":
            return Fail("provider_quota")
    return Say(given.text or "it goes on")


@asynccontextmanager
async def alive(tmp_path: Path) -> AsyncIterator[Life]:
    async with a_host(tmp_path / "root", app_of(scripted_backend(play, steps=True))) as life:
        await life.ask("session.create", session_id="s1", cwd=str(tmp_path))
        yield life


Test = Callable[[Life], Coroutine[Any, Any, None]]
Go = Callable[[Test], None]


@pytest.fixture
def go(tmp_path: Path) -> Go:
    def run(test: Test) -> None:
        async def whole() -> None:
            async with alive(tmp_path) as life:
                await test(life)

        asyncio.run(whole())

    return run


async def refused(life: Life, operation: str, **asked: Any) -> str:
    with pytest.raises(Exception) as caught:
        await life.ask(operation, **asked)
    code, message = refusal(operation, caught.value)
    assert message
    return code


async def over(life: Life, turn_id: str = "t1", until: tuple[str, ...] = OVER) -> dict[str, Any]:
    turn: dict[str, Any] = {}
    async with asyncio.timeout(10):
        while turn.get("status") not in until:
            turn = await life.ask("turn.query", session_id="s1", turn_id=turn_id)
            await asyncio.sleep(0.005)
    return turn


def test_a_session_that_is_not_there_is_not_found(go: Go) -> None:
    async def test(life: Life) -> None:
        asked: dict[str, dict[str, Any]] = {
            "turn.start": {"turn_id": "t", "content": "go"},
            "turn.query": {"turn_id": "t"},
            "turn.message.submit": {"message_id": "m", "content": "go"},
            "session.history": {},
            "session.event": {"seq": 0},
            "session.update": {"request_id": "q", "patch": {"name": "n"}},
            "session.archive": {"request_id": "q"},
            "session.fork": {"new_session_id": "s3"},
            "session.delete": {},
            "interaction.query": {"interaction_id": "i"},
            "subscription.open": {},
            "plan.query": {},
            "turn.resume.query": {},
        }
        for operation, more in asked.items():
            assert await refused(life, operation, session_id="s2", **more) == "not_found", operation
        assert set(life.host._lanes) <= {"s1"}

    go(test)


def test_what_is_not_there_in_a_session_is_not_found(go: Go) -> None:
    async def test(life: Life) -> None:
        asked: dict[str, dict[str, Any]] = {
            "turn.query": {"turn_id": "t"},
            "turn.stop": {"turn_id": "t", "run_id": "r", "stop_id": "x"},
            "turn.interrupt": {"turn_id": "t", "run_id": "r", "interrupt_id": "x"},
            "session.event": {"seq": 99},
            "interaction.query": {"interaction_id": "i"},
            "interaction.answer": {"interaction_id": "i", "answer": {"kind": "question_answer", "answers": ["Yes"]}},
        }
        for operation, more in asked.items():
            assert await refused(life, operation, session_id="s1", **more) == "not_found", operation
        assert await refused(life, "subscription.close", subscription_id="w") == "not_found"

    go(test)


def test_a_session_is_created_once(go: Go, tmp_path: Path) -> None:
    async def test(life: Life) -> None:
        same = {"session_id": "s1", "cwd": str(tmp_path)}
        assert await life.ask("session.create", **same) == {"session_id": "s1", "revision": 0}
        # What is not said is as it is, also when it was changed since.
        await life.ask("session.update", session_id="s1", request_id="q", patch={"name": "later"})
        assert await life.ask("session.create", **same) == {"session_id": "s1", "revision": 0}
        assert await refused(life, "session.create", **same, name="another") == "operation_conflict"
        assert await refused(life, "session.create", session_id="s2", cwd="no/such") == "invalid_request"
        assert await refused(life, "session.create", session_id="s2", backend="nobody") == "invalid_request"

    go(test)


def test_a_session_is_forked_once(go: Go) -> None:
    async def test(life: Life) -> None:
        for number in (1, 2):
            await life.ask("turn.start", session_id="s1", turn_id=f"t{number}", content="go")
            await over(life, f"t{number}")
        asked = {"session_id": "s1", "new_session_id": "s2", "turn_id": "t1", "name": "fork"}
        forked = await life.ask("session.fork", **asked)
        assert forked == {"session_id": "s2", "revision": 0}
        assert await life.ask("session.fork", **asked) == forked
        assert await life.ask("session.fork", session_id="s1", new_session_id="s2") == forked
        for other in ({"turn_id": "t2"}, {"name": "other"}, {"session_id": "s2"}):
            assert await refused(life, "session.fork", **{**asked, **other}) == "operation_conflict", other
        # A fork is not what somebody creates.
        assert await refused(life, "session.create", session_id="s2") == "operation_conflict"
        assert await refused(life, "session.fork", session_id="s1", new_session_id="s3", turn_id="no") == (
            "operation_conflict"
        )

    go(test)


def test_a_change_is_made_once_for_a_request(go: Go) -> None:
    async def test(life: Life) -> None:
        asked = {"session_id": "s1", "request_id": "q", "patch": {"name": "one"}}
        first = await life.ask("session.update", **asked)
        assert await life.ask("session.update", **asked) == first
        assert await refused(life, "session.update", **{**asked, "patch": {"name": "two"}}) == "operation_conflict"
        archived = await life.ask("session.archive", session_id="s1", request_id="a")
        assert await life.ask("session.archive", session_id="s1", request_id="a") == archived
        assert await refused(life, "turn.start", session_id="s1", turn_id="t", content="go") == "session_archived"
        assert (await life.ask("session.unarchive", session_id="s1", request_id="u"))["revision"] > archived["revision"]

    go(test)


def test_a_session_in_use_is_not_released_and_not_deleted(go: Go) -> None:
    async def test(life: Life) -> None:
        started = await life.ask("turn.start", session_id="s1", turn_id="t1", content="hold")
        for operation in ("session.release", "session.delete"):
            assert await refused(life, operation, session_id="s1") == "session_busy"
        await life.ask("turn.stop", session_id="s1", turn_id="t1", run_id=started["turn"]["run_id"], stop_id="x")
        watch = await life.ask("subscription.open", session_id="s1")
        assert await refused(life, "session.release", session_id="s1") == "session_busy"
        deleted = await life.ask("session.delete", session_id="s1")
        assert Path(deleted["path"]).is_dir()
        # Once more is answered the same.
        assert await life.ask("session.delete", session_id="s1") == deleted
        assert await refused(life, "turn.query", session_id="s1", turn_id="t1") == "not_found"
        assert watch["subscription_id"]

    go(test)


def test_a_history_is_told_page_by_page(go: Go) -> None:
    async def test(life: Life) -> None:
        for number in range(3):
            await life.ask("turn.start", session_id="s1", turn_id=f"t{number}", content="go")
            await over(life, f"t{number}")
        events: list[dict[str, Any]] = []
        before: int | None = None
        while True:
            page = await life.ask("session.history", session_id="s1", before=before, limit=4)
            assert len(page["events"]) <= 4
            events = [*page["events"], *events]
            before = page["next"]
            if before is None:
                break
        seqs = [event["seq"] for event in events]
        assert seqs == sorted(set(seqs))
        kinds = [event["type"] for event in events]
        assert kinds.count("turn/admitted") == kinds.count("user/message") == 3
        assert not {"assistant/delta", "request/header", "session/header"} & set(kinds)

    go(test)


def test_a_long_event_is_read_in_pieces(go: Go) -> None:
    async def test(life: Life) -> None:
        text = "0123456789" * 22_000
        await life.ask("turn.start", session_id="s1", turn_id="t1", content=text)
        await over(life)
        types: dict[str, int] = {}
        before: int | None = None
        while "user/message" not in types:
            page = await life.ask("session.history", session_id="s1", before=before, limit=500)
            types |= {event["type"]: event["seq"] for event in page["events"]}
            before = page["next"]
        # The message of the turn, and its admission, do not fit into one page.
        assert "turn/admitted" not in types
        seq, whole, pieces = types["user/message"], "", 0
        while True:
            piece = await life.ask("session.event", session_id="s1", seq=seq, offset=len(whole))
            assert piece["offset"] == len(whole)
            whole, pieces = whole + piece["text"], pieces + 1
            if len(whole) == piece["total"]:
                break
        assert pieces > 1
        assert text in whole

    go(test)


def test_sessions_are_listed_page_by_page(go: Go) -> None:
    async def test(life: Life) -> None:
        for number in range(2, 6):
            await life.ask("session.create", session_id=f"s{number}")
        first = await life.ask("session.list", limit=2)
        assert [row["session_id"] for row in first["sessions"]] == ["s1", "s2"]
        second = await life.ask("session.list", limit=2, after=first["next"])
        assert [row["session_id"] for row in second["sessions"]] == ["s3", "s4"]
        last = await life.ask("session.list", limit=2, after=second["next"])
        assert [row["session_id"] for row in last["sessions"]] == ["s5"]
        assert last["next"] is None
        await life.ask("turn.start", session_id="s1", turn_id="t1", content="hold")
        listed = await life.ask("session.list")
        assert [row["running"] for row in listed["sessions"]] == [["t1"], [], [], [], []]

    go(test)


def test_a_question_is_answered_once(go: Go) -> None:
    async def test(life: Life) -> None:
        await life.ask("turn.start", session_id="s1", turn_id="t1", content="ask")
        await over(life, until=("waiting_for_user",))
        opened = await life.ask("subscription.open", session_id="s1")
        [row] = opened["snapshot"]["interactions"]["pending"]
        asked = {"session_id": "s1", "interaction_id": row["interaction_id"]}
        answer = {"kind": "question_answer", "answers": ["Yes"]}
        assert (await life.ask("interaction.query", **asked))["status"] == "pending"
        answered = await life.ask("interaction.answer", **asked, answer=answer)
        assert answered["session_id"] == "s1"
        assert (answered["status"], answered["outcome"]) == ("answered", answer)
        assert (await life.ask("interaction.answer", **asked, answer=answer))["outcome"] == answer
        other = {"kind": "question_answer", "answers": ["No"]}
        assert await refused(life, "interaction.answer", **asked, answer=other) == "already_resolved"
        assert await refused(life, "interaction.answer", **asked, answer={"kind": "nonsense"}) == "invalid_request"

    go(test)


def test_what_cannot_be_resumed_says_why(go: Go) -> None:
    async def test(life: Life) -> None:
        told = await life.ask("turn.resume.query", session_id="s1")
        assert told["disposition"] == "park"
        assert told["rejection_reasons"]
        assert {"code", "text"} == set(told["diagnostics"][0])
        asked = {"session_id": "s1", "turn_id": "t9", "source_run_id": "r", "high_water": 1}
        assert await refused(life, "turn.resume.start", **asked) == "continuation_parked"
        assert await refused(life, "turn.resume.query", session_id="s1", rerun=["never"]) == "invalid_request"
        started = await life.ask("turn.start", session_id="s1", turn_id="t1", content="go")
        assert await refused(life, "turn.resume.start", **{**asked, "turn_id": "t1"}) == "operation_conflict"
        assert started["turn"]["turn_id"] == "t1"

    go(test)


def test_a_run_is_resumed_once(go: Go) -> None:
    async def test(life: Life) -> None:
        failed = await life.ask("turn.start", session_id="s1", turn_id="t1", content="fail")
        await over(life)
        told = await life.ask("turn.resume.query", session_id="s1")
        assert told["disposition"] == "continue"
        assert (told["source_turn_id"], told["source_run_id"]) == ("t1", failed["turn"]["run_id"])
        asked = {"session_id": "s1", "source_run_id": told["source_run_id"], "high_water": told["high_water"]}
        stale = {**asked, "high_water": told["high_water"] - 1}
        assert await refused(life, "turn.resume.start", turn_id="t2", **stale) == "operation_conflict"
        resumed = await life.ask("turn.resume.start", turn_id="t2", **asked)
        assert resumed["turn"]["turn_id"] == "t2"
        ended = await over(life, "t2")
        assert ended["status"] == "completed"
        # The same again is answered the same, and another under its id is not.
        again = await life.ask("turn.resume.start", turn_id="t2", **asked)
        assert again == {"turn": ended, "revision": resumed["revision"]}
        for other in ({**asked, "source_run_id": "another"}, stale):
            assert await refused(life, "turn.resume.start", turn_id="t2", **other) == "operation_conflict"
        assert await refused(life, "turn.start", session_id="s1", turn_id="t2", content="go") == "operation_conflict"
        # What has gone on already does not go on from there again.
        assert await refused(life, "turn.resume.start", turn_id="t3", **asked) == "continuation_parked"
        await life.ask("turn.start", session_id="s1", turn_id="t4", content="hold")
        assert await refused(life, "turn.resume.start", turn_id="t5", **asked) == "session_busy"

    go(test)


def test_a_connection_watches_so_many_sessions(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maka.runtime.host.host.MAX_SUBSCRIPTIONS", 2)

    async def test(life: Life) -> None:
        connection = life.connection
        for _ in range(2):
            await life.ask("subscription.open", session_id="s1")
        assert await refused(life, "subscription.open", session_id="s1") == "too_many_subscriptions"
        life.host.left(connection)
        assert life.host._watchers == {}
        opened = await life.ask("subscription.open", session_id="s1")
        assert await life.ask("subscription.close", subscription_id=opened["subscription_id"]) == {}
        assert not life.host.lane("s1").watched

    go(test)
