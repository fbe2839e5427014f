"""What a dead host left is taken up before the next one is ready: which sessions, in which order, and for how long."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from maka.journal.digests import digest_of
from maka.journal.errors import JournalDamaged, JournalError, JournalWriteError
from maka.journal.events import Draft, JsonObject
from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.host.lane import Lane
from maka.runtime.host.recovering import Recovering, Report, is_due
from maka.runtime.kernel.kernel import SessionStatus
from maka.runtime.recovery import Recovered
from support.hosts import Root
from support.in_host import a_host, in_process, passed
from support.managed import app_of

DEADLINE: Final = 2.0
HEALTHY: Final[JsonObject] = {
    "verdict": "healthy",
    "unsettled": 0,
    "active_plan": False,
    "pending_handoff": None,
    "queued": 0,
    "admitted": 0,
}


# ---------------------------------------------------------------- which


def row(**more: Any) -> JsonObject:
    return {**HEALTHY, "pending_handoff": "", **more}


def test_a_session_in_order_is_not_looked_at() -> None:
    assert not is_due(row())
    assert not is_due(row(name="x", turns=3, archived=True, running=[]))


@pytest.mark.parametrize(
    "due",
    [
        {"verdict": "interrupted"},
        {"verdict": "unchecked"},
        {"verdict": "damaged"},
        {"unsettled": 1},
        {"active_plan": True},
        {"pending_handoff": "h1"},
        {"queued": 1},
        {"admitted": 1},
        {"queued": None},
        {"unsettled": None},
    ],
    ids=str,
)
def test_a_session_that_may_have_something_to_do_is_looked_at(due: JsonObject) -> None:
    assert is_due(row(**due))


def test_of_many_that_failed_the_first_are_listed() -> None:
    report = Report(recovered=150, failed={f"s{number}": "no" for number in range(150)})
    told = report.to_json()
    assert (told["recovered"], told["failed_count"], len(told["failed"])) == (150, 150, 100)
    assert told["failed"][0] == {"session_id": "s0", "message": "no"}


# ---------------------------------------------------------------- how


class Sessions:
    """Of a manager what recovering needs. ``found``: session id → what recovering it gives, raises, or waits for."""

    def __init__(self, **found: Any) -> None:
        self.found = found
        self.rows = [{"session_id": session_id, **row(queued=1)} for session_id in found]
        self.looked: list[str] = []
        self.at_once = self.most = 0
        self.lanes: dict[str, Next] = {}
        self.here: set[str] = set()

    async def list(self) -> list[JsonObject]:
        return self.rows

    async def recover(self, session_id: str) -> Recovered:
        self.looked.append(session_id)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            found = self.found[session_id]
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            if isinstance(found, asyncio.Event):
                await found.wait()
                found = "unchanged"
            await asyncio.sleep(0.01)
            if isinstance(found, Exception):
                raise found
            return found if isinstance(found, Recovered) else Recovered(session_id, found, waits=True)
        finally:
            self.at_once -= 1

    def status(self, session_id: str) -> SessionStatus:
        here = session_id in self.here
        return SessionStatus(session_id, here, [], stopping=False, quarantined=None, degraded=None)

    def path(self, session_id: str) -> Path:
        return Path("/nonexistent") / session_id

    def lane(self, session_id: str) -> Lane:
        lane: Any = self.lanes.setdefault(session_id, Next())
        made: Lane = lane
        return made


class Next:
    """Of a lane what recovering needs."""

    def __init__(self) -> None:
        self.begun = 0

    async def next(self) -> None:
        self.begun += 1

    async def close_open(self) -> None:
        pass


def recovering(sessions: Sessions) -> Recovering:
    manager: Any = sessions
    return Recovering(manager, sessions.lane, deadline=DEADLINE)


@in_process
async def test_what_waits_in_a_session_is_begun_once_it_is_in_order() -> None:
    sessions = Sessions(a="repaired", b="unchanged", c=Recovered("c", "unchanged"))
    each = recovering(sessions)
    await each.run()
    assert {session_id: lane.begun for session_id, lane in sessions.lanes.items() if lane.begun} == {"a": 1, "b": 1}
    assert each.report.to_json() == {"recovered": 3, "failed": [], "failed_count": 0}


@in_process
async def test_only_those_that_are_due_are_looked_at() -> None:
    sessions = Sessions(a="unchanged", b="unchanged")
    sessions.rows[1] = {"session_id": "b", **row()}
    await recovering(sessions).run()
    assert sessions.looked == ["a"]


@in_process
async def test_a_session_that_somebody_uses_here_already_is_in_order() -> None:
    sessions = Sessions(a="open")
    sessions.here.add("a")
    each = recovering(sessions)
    await each.run()
    assert sessions.lanes == {}
    assert each.report.failed == {}
    await passed(0.01)
    assert not each.busy


@in_process
async def test_a_session_that_another_process_has_is_taken_up_once_that_has_closed_it() -> None:
    sessions = Sessions(a=["open", "open", "repaired"])
    each = recovering(sessions)
    await each.run()
    assert "another process" in each.report.failed["a"]
    assert each.busy
    await passed(5.0)
    assert sessions.lanes["a"].begun == 1
    assert each.report.failed == {}
    assert not each.busy


@in_process
async def test_one_that_cannot_be_recovered_is_told_by_itself() -> None:
    damaged = JournalDamaged("it is damaged; look at it")
    sessions = Sessions(
        a=Recovered("a", "failed", error=damaged), b=JournalError("no"), c=RuntimeError("a defect"), d="unchanged"
    )
    each = recovering(sessions)
    await each.run()
    assert each.report.failed["a"] == str(damaged)
    assert set(each.report.failed) == {"a", "b", "c"}
    assert sessions.lanes["d"].begun == 1


@in_process
async def test_sessions_are_taken_up_side_by_side_but_not_all_at_once() -> None:
    sessions = Sessions(**{f"s{number}": "unchanged" for number in range(30)})
    await recovering(sessions).run()
    assert sessions.most == 8
    assert len(sessions.looked) == 30


@in_process
async def test_one_that_takes_too_long_holds_nobody_up_and_goes_on() -> None:
    late = asyncio.Event()
    sessions = Sessions(a=late, b="unchanged")
    each = recovering(sessions)
    loop = asyncio.get_running_loop()
    await each.run()
    assert loop.time() == pytest.approx(DEADLINE)
    assert "still being recovered after 2 s" in each.report.failed["a"]
    assert sessions.lanes["b"].begun == 1
    late.set()
    await passed()
    assert sessions.lanes["a"].begun == 1
    assert each.report.failed == {}


@in_process
async def test_one_that_fails_late_is_told_with_its_failure() -> None:
    late = asyncio.Event()

    class Late(Sessions):
        async def recover(self, session_id: str) -> Recovered:
            await super().recover(session_id)
            raise JournalError("no, in the end")

    each = recovering(Late(a=late))
    await each.run()
    late.set()
    await passed()
    assert each.report.failed == {"a": "no, in the end"}


@in_process
async def test_what_is_late_is_given_up_when_the_host_ends() -> None:
    sessions = Sessions(a=asyncio.Event())
    each = recovering(sessions)
    await each.run()
    await each.cancel()
    assert sessions.at_once == 0


@in_process
async def test_one_whose_journal_could_not_be_written_is_tried_again() -> None:
    full = JournalWriteError("the disk is full", errno=28, poisoned=False)
    sessions = Sessions(a=[full, full, "repaired"])
    each = recovering(sessions)
    await each.run()
    assert each.report.failed == {"a": "the disk is full"}
    await passed(5.0)
    assert each.report.failed == {}
    assert sessions.lanes["a"].begun == 1
    assert sessions.looked == ["a"] * 3
    assert each.report.recovered == 1


@in_process
async def test_a_root_that_cannot_be_listed_is_no_root_for_a_host() -> None:
    class Unlisted(Sessions):
        async def list(self) -> list[JsonObject]:
            raise JournalError("it cannot be listed")

    with pytest.raises(JournalError, match="cannot be listed"):
        await recovering(Unlisted()).run()


# ---------------------------------------------------------------- in which order, on a disk


def message(text: str) -> JsonObject:
    return {"content": [{"kind": "text", "text": text}]}


def accepted(message_id: str) -> Draft:
    data = {"message_id": message_id, "placement": "next_turn", "disposition": "followup", **message("wait")}
    return Draft("message/accepted", {**data, "digest": digest_of(message("wait"))})


def test_repair_comes_before_a_plans_end_and_that_before_the_queue(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir(mode=0o700)
    ids = {"turn_id": "t", "run_id": "r"}
    run: JsonObject = {**ids, "invocation_id": "i", "backend": "scripted", "model": "", "cwd": "/"}
    run |= {"permission_mode": "bypass", "created_at": 1, "root": {"kind": "user"}}
    plan: JsonObject = {"proposal_id": "p", "turn_id": "t", "revision": 1, "title": "a plan", "steps": []}
    root.create(
        None,
        Draft("turn/start", {**ids, "invocation_id": "i", "turn": 1, "run": run}),
        Draft("user/message", {**ids, "message_id": "m", **message("go"), "source": {"kind": "user"}}),
        Draft("plan/proposed", {**plan, "steps": [{"id": "1", "title": "a", "description": "b"}]}),
        Draft("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"}),
        accepted("m1"),
        accepted("m2"),
    )

    async def test() -> None:
        app = app_of(scripted_backend(["one", "two"]))
        async with a_host(root.path, app) as life:
            # It was not ready before the next turn had begun.
            begun = [event.type for event in root.events()]
            assert "turn/admitted" in begun
            assert "turn/start" in begun[begun.index("turn/admitted") :]
            await life.until(lambda: len(root.of_type("run/settled")) == 2)
        assert life.states == ["recovering", "ready", "draining"]

    asyncio.run(test())
    types = [event.type for event in root.events()]
    order = [types.index(type_) for type_ in ("turn/end", "plan/execution", "turn/admitted")]
    assert order == sorted(order)
    assert [data["message_id"] for data in root.admissions()] == ["m1", "m2"]
    assert root.of_type("plan/execution")[0].data["status"] == "interrupted"
