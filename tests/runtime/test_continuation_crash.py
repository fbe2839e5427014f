"""A continuation is killed with SIGKILL behind each of its durable points; what is left is repaired, and goes on."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import maka
from maka.journal.events import Draft
from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.continuation.failpoints import Failpoint
from maka.runtime.continuation.shapes import ContinuationPlan
from maka.runtime.errors import ContinuationParked, SettleRefused
from maka.runtime.sessions import SessionManager
from support.crashing import FAILPOINTS, SESSION, SOURCE, TEXT, begun, manager, statuses
from support.legal import assert_legal
from support.lives import said_by_users
from support.managed import events_of, files_of, types_of
from support.nursery import Nursery

T = TypeVar("T")

CLAIM, CREATED, START, TERMINAL, SETTLED = FAILPOINTS
#: What the crash has left in the way of a second plan.
REPLANNED = {
    CLAIM: "continuation_claim_repair_required",
    CREATED: "continuation_claim_repair_required",
    START: "continuation_started_indeterminate",
    TERMINAL: "continuation_claim_repair_required",
    SETTLED: "continuation_already_exists",
}
#: What the recovery appends.
APPENDED = {
    CLAIM: ["run/created", "continuation/start", "turn/end", "run/settled"],
    CREATED: ["continuation/start", "turn/end", "run/settled"],
    START: [],
    TERMINAL: ["run/settled"],
    SETTLED: [],
}
#: How the continuation's run stands then.
STATUS = {CLAIM: "failed", CREATED: "failed", START: "running", TERMINAL: "completed", SETTLED: "completed"}
ABANDONED = "continuation_abandoned_before_provider_dispatch"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.crashing") as nursery:
        yield nursery


@pytest.fixture(scope="module")
def crashed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[Failpoint, Path]:
    """What a killed process left, by the point at which it was."""
    return {point: crash_at(nursery, point, tmp_path_factory.mktemp(point)) for point in FAILPOINTS}


def crash_at(nursery: Nursery, failpoint: Failpoint, root: Path) -> Path:
    with nursery.life("support.crashing:crash_at", str(root), failpoint) as child:
        child.until(f"READY:{failpoint}")
        child.kill()
        assert child.code == -signal.SIGKILL
    return root


@pytest.fixture(params=FAILPOINTS)
def failpoint(request: pytest.FixtureRequest) -> Failpoint:
    point: Failpoint = request.param
    return point


@pytest.fixture
def place(crashed: dict[Failpoint, Path], tmp_path: Path) -> "Crash":
    return Crash(crashed, tmp_path)


class Crash:
    """Copies of what was left."""

    def __init__(self, crashed: dict[Failpoint, Path], directory: Path) -> None:
        self._crashed = crashed
        self._directory = directory

    def at(self, point: Failpoint) -> Path:
        return Path(shutil.copytree(self._crashed[point], self._directory / point))


def claim_of(root: Path) -> dict[str, Any]:
    [claim] = data_of(root, "continuation/claim")
    return claim


def target_of(root: Path) -> str:
    run_id: str = claim_of(root)["target_run"]["run_id"]
    return run_id


def data_of(root: Path, type_: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events_of(root, SESSION) if event["type"] == type_]


def ledger_of(root: Path, run_id: str) -> list[dict[str, Any]]:
    """The events in a run, in order; those about it are not in it."""
    return [
        event
        for event in events_of(root, SESSION)
        if event["data"].get("run_id") == run_id and not event["type"].startswith(("run/", "interaction/"))
    ]


def terminal_facts(root: Path, run_id: str) -> list[dict[str, Any]]:
    return [event for event in ledger_of(root, run_id) if event["type"] in ("turn/end", "handoff/pause")]


def bytes_of(root: Path) -> bytes:
    return (root / "sessions" / SESSION / "journal.jsonl").read_bytes()


def look(root: Path) -> dict[Path, tuple[int, ...]]:
    """Everything below the root, as the system describes it."""
    found = ((place, os.stat(place)) for place in [root, *root.rglob("*")])
    return {place: (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns) for place, stat in found}


def go(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def planned(sessions: SessionManager, run_id: str | None = SOURCE) -> ContinuationPlan:
    return await sessions.plan_safe_boundary_continuation(SESSION, source_run_id=run_id)


async def parked(sessions: SessionManager, run_id: str | None = SOURCE) -> tuple[str, ...]:
    plan = await planned(sessions, run_id)
    assert plan.disposition == "park"
    assert all(diagnostic.message for diagnostic in plan.diagnostics)
    assert plan.continuation is None
    with pytest.raises(ContinuationParked):
        sessions.resume_safe_boundary_continuation(plan)
    return plan.rejection_reasons


def assert_prefix(failpoint: Failpoint, root: Path, run_id: str) -> None:
    status, events = statuses(root).get(run_id), ledger_of(root, run_id)
    if failpoint == CLAIM:
        assert status is None
        assert events == []
        return
    assert status is not None
    if failpoint == CREATED:
        assert status == "created"
        assert events == []
        return
    assert events[0]["type"] == "continuation/start"
    assert events[0]["data"]["protocol"] == "continuation_start_v2"
    assert events[0]["data"]["start_kind"] == "runtime_admission"
    if failpoint == START:
        assert terminal_facts(root, run_id) == []
        return
    assert len(terminal_facts(root, run_id)) == 1
    if failpoint == TERMINAL:
        assert status in ("created", "running")
        return
    assert status == "completed"


# ---------------------------------------------------------------- every committed prefix


def test_every_committed_prefix_is_reopened_and_repaired(place: Crash, failpoint: Failpoint) -> None:
    root = place.at(failpoint)

    async def main() -> None:
        async with manager(root) as sessions:
            [row] = await sessions.list()
            assert row["session_id"] == SESSION
            run_id = target_of(root)
            assert_prefix(failpoint, root, run_id)

            before = look(root)
            assert await parked(sessions) == (REPLANNED[failpoint],)
            assert look(root) == before, "a plan has written"

            [found] = await sessions.recover_interrupted_sessions()
            assert (found.appended, found.error) == (len(APPENDED[failpoint]), None)
            terminals, status = terminal_facts(root, run_id), statuses(root)[run_id]
            if failpoint == START:
                assert terminals == []
                assert status in ("created", "running")
                assert await parked(sessions) == ("continuation_started_indeterminate",)
            else:
                assert len(terminals) == 1
                assert status in ("completed", "failed", "cancelled")
            assert status == STATUS[failpoint]

    go(main())


def test_a_recovery_appends_exactly_what_is_missing_and_once(place: Crash, failpoint: Failpoint) -> None:
    root = place.at(failpoint)
    before = bytes_of(root)

    async def recovered() -> str:
        async with manager(root) as sessions:
            [found] = await sessions.recover_interrupted_sessions()
            return found.state

    assert go(recovered()) == ("repaired" if APPENDED[failpoint] else "unchanged")
    once = files_of(root)
    assert bytes_of(root).startswith(before)
    added = events_of(root, SESSION)[before.count(b"\n") :]
    assert [event["type"] for event in added] == APPENDED[failpoint]
    # One batch, and nothing in it that another repair would have made otherwise.
    assert [event.get("more", 0) for event in added] == [*reversed(range(len(added)))]
    assert {event["ts"] for event in added} <= {json.loads(before.splitlines()[-1])["ts"]}
    claim = claim_of(root)
    run = claim["target_run"]
    ids = {"turn_id": run["turn_id"], "run_id": run["run_id"]}
    for event in added:
        data = event["data"]
        match event["type"]:
            case "run/created":
                assert data == {"run": run}
            case "continuation/start":
                named = ("claim_id", "purpose", "boundary_digest", "replay_digest", "source")
                kind = {"protocol": "continuation_start_v2", "start_kind": "claim_repair"}
                assert data == {**kind, **ids, **{key: claim[key] for key in named}}
            case "turn/end":
                assert data == {**ids, "reason": {"kind": "failed", "failure_class": ABANDONED}, "synthesized": True}
            case "run/settled":
                assert data == {"run_id": run["run_id"]}

    assert go(recovered()) == "unchanged"
    assert files_of(root) == once
    assert maka.load(root / "sessions" / SESSION).verdict == "healthy"
    assert files_of(root) == once


def test_what_is_planned_and_what_a_load_shows_is_the_same_with_and_without_a_recovery_on_disk(
    place: Crash, failpoint: Failpoint
) -> None:
    root = place.at(failpoint)

    async def main() -> None:
        async with manager(root) as sessions:
            before = look(root)
            foreseen = await sessions.plan_safe_boundary_continuation(SESSION, source_run_id=SOURCE, repaired=True)
            assert look(root) == before
            view = maka.inspect(root / "sessions" / SESSION)
            await sessions.recover_interrupted_sessions()
            assert (await planned(sessions)).rejection_reasons == foreseen.rejection_reasons
            after = maka.inspect(root / "sessions" / SESSION)
            assert (view.turns(), view.runs(), view.messages()) == (after.turns(), after.runs(), after.messages())

    go(main())


# ---------------------------------------------------------------- and then


@pytest.mark.parametrize("failpoint", [CLAIM, CREATED])
def test_behind_a_repair_it_is_the_repaired_run_that_is_continued(place: Crash, failpoint: Failpoint) -> None:
    root = place.at(failpoint)
    backends = scripted_backend(["It goes on."])

    async def main() -> None:
        async with manager(root, backends) as sessions:
            await sessions.recover_interrupted_sessions()
            run_id = target_of(root)
            assert data_of(root, "turn/end")[-1]["reason"]["failure_class"] == ABANDONED
            assert await parked(sessions) == ("continuation_already_exists",)

            plan = await planned(sessions, run_id)
            assert plan.continuation is not None, plan
            assert (await planned(sessions, None)).source_run_id == run_id
            segments = plan.continuation.boundary["segments"]
            assert [segment["run_id"] for segment in segments] == [SOURCE, run_id]
            assert plan.continuation.boundary_digest == segments[-1]["sum"] != claim_of(root)["boundary_digest"]
            assert said_by_users([*plan.continuation.replay]) == [TEXT]

            stream = sessions.resume_safe_boundary_continuation(plan)
            assert [event.kind async for event in stream][-1] == "complete"
            assert stream.reason == {"kind": "completed"}
            [backend] = backends.built
            [sent] = backend.inputs
            assert (sent.text, sent.content) == ("", [])
            assert sent.continuation is not None
            assert sent.continuation.source["run_id"] == run_id
            assert said_by_users(sent.history) == [TEXT]
            assert statuses(root) == {SOURCE: "failed", run_id: "failed", plan.continuation.run_id: "completed"}
            assert await parked(sessions, run_id) == ("continuation_already_exists",)

    go(main())
    view = maka.inspect(root / "sessions" / SESSION)
    assert view.verdict == "healthy"
    assert_legal(view.messages())
    assert said_by_users(view.messages()) == [TEXT]
    assert types_of(root, SESSION).count("user/message") == 1


@pytest.mark.parametrize("recovered", [False, True])
def test_a_start_of_which_nothing_is_known_is_settled_on_request_and_never_sent(place: Crash, recovered: bool) -> None:
    root = place.at(START)
    backends = scripted_backend(["It goes on."])

    async def main() -> None:
        async with manager(root, backends) as sessions:
            if recovered:
                await sessions.recover_interrupted_sessions()
            claim_id, run_id = claim_of(root)["claim_id"], target_of(root)
            with pytest.raises(SettleRefused) as refused:
                await sessions.settle_indeterminate_continuation(SESSION, "another")
            assert refused.value.code == "claim_unknown"

            before = bytes_of(root)
            events = await sessions.settle_indeterminate_continuation(SESSION, claim_id)
            assert [event.type for event in events] == ["turn/end", "run/settled"]
            assert [event.more for event in events] == [1, 0]
            reason = events[0].data["reason"]
            assert (reason["kind"], reason["failure_class"]) == ("failed", "continuation_indeterminate")
            assert bytes_of(root).startswith(before)
            assert backends.built == []

            with pytest.raises(SettleRefused) as refused:
                await sessions.settle_indeterminate_continuation(SESSION, claim_id)
            assert refused.value.code == "claim_not_indeterminate"
            assert len(events_of(root, SESSION)) == len(before.splitlines()) + 2

            assert await parked(sessions) == ("continuation_already_exists",)
            plan = await planned(sessions, run_id)
            stream = sessions.resume_safe_boundary_continuation(plan)
            _ = [event async for event in stream]
            assert stream.reason == {"kind": "completed"}
            [sent] = backends.built[0].inputs
            assert said_by_users(sent.history) == [TEXT]

    go(main())


@pytest.mark.parametrize("recovered", [False, True])
@pytest.mark.parametrize("failpoint", [CLAIM, CREATED, START, TERMINAL])
def test_a_new_message_closes_first_what_was_cut_off(place: Crash, failpoint: Failpoint, recovered: bool) -> None:
    root = place.at(failpoint)
    backends = scripted_backend(["Fine."])

    async def main() -> None:
        async with manager(root, backends) as sessions:
            if recovered:
                await sessions.recover_interrupted_sessions()
            run_id = target_of(root)
            stream = sessions.send(SESSION, "and now this")
            _ = [event async for event in stream]
            assert stream.reason == {"kind": "completed"}
            ends = {data["run_id"]: data["reason"] for data in data_of(root, "turn/end")}
            wanted = {CLAIM: ABANDONED, CREATED: ABANDONED, START: "continuation_indeterminate", TERMINAL: None}
            assert ends[run_id].get("failure_class") == wanted[failpoint]
            assert statuses(root)[run_id] == ("completed" if failpoint == TERMINAL else "failed")
            [sent] = backends.built[0].inputs
            assert sent.continuation is None
            assert said_by_users(sent.history) == [TEXT, "and now this"]

    go(main())
    events = events_of(root, SESSION)
    begun, ended = (
        [event["seq"] for event in events if event["type"] == type_] for type_ in ("turn/start", "turn/end")
    )
    assert begun[-1] > ended[-2]
    view = maka.inspect(root / "sessions" / SESSION)
    assert (view.verdict, len(view.turns())) == ("healthy", 3)


@pytest.mark.parametrize("failpoint", [CLAIM, CREATED, START])
def test_a_stop_that_is_on_disk_ends_it_aborted(place: Crash, failpoint: Failpoint) -> None:
    root = place.at(failpoint)
    run = claim_of(root)["target_run"]
    stop = {"stop_id": "stop", "turn_id": run["turn_id"], "source": "the user", "mode": "immediate"}
    with maka.open_session(SESSION, root=root, repair=False) as journal:
        journal.append_durable(Draft("turn/stop_requested", stop))

    async def main() -> None:
        async with manager(root) as sessions:
            assert len(await parked(sessions)) == 1
            before = len(events_of(root, SESSION))
            await sessions.recover_interrupted_sessions()
            added = events_of(root, SESSION)[before:]
            types = [event["type"] for event in added]
            if failpoint == START:
                assert types == ["turn/end", "session/note", "run/settled"]
                assert added[1]["data"] == {
                    "kind": "abort", "run_id": run["run_id"], "turn_id": run["turn_id"], "source": "the user",
                }  # fmt: skip
            else:
                assert types == APPENDED[failpoint]
            [end] = [event["data"] for event in added if event["type"] == "turn/end"]
            assert end["reason"] == {"kind": "aborted", "source": "the user"}
            assert statuses(root)[run["run_id"]] == "cancelled"
            once = files_of(root)
            await sessions.recover_interrupted_sessions()
            assert files_of(root) == once
            assert await parked(sessions) == ("continuation_already_exists",)
            assert (await planned(sessions, run["run_id"])).disposition == "continue"

    go(main())


def test_a_continuation_that_was_not_cut_off_leaves_the_same_as_one_that_was_behind_its_end(
    place: Crash, tmp_path: Path
) -> None:
    root = tmp_path / "whole"
    root.mkdir(mode=0o700)

    async def main() -> None:
        async with manager(root, prefix="id-") as sessions:
            await begun(sessions, root)
            async for _ in sessions.resume_safe_boundary_continuation(await planned(sessions)):
                pass

    go(main())
    assert types_of(root, SESSION) == types_of(place.at(SETTLED), SESSION)
    claim = claim_of(root)
    minted = [claim["target_run"][key] for key in ("invocation_id", "run_id", "turn_id")]
    assert [*minted, claim["claim_id"]] == ["id-1", "id-2", "id-3", "id-4"]
