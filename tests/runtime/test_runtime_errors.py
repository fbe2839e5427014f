"""Each error of the runtime as a person meets it: through the public face, with a sentence that says what to do."""

import asyncio
import errno
import inspect
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from maka.journal import rollback
from maka.journal.files import REAL, Fs
from maka.runtime import (
    App,
    BackendRegistry,
    Deadlines,
    FileJournals,
    JournalInteractions,
    LifecycleEvent,
    RuntimeKernel,
    SessionManager,
    Wait,
    errors,
    load_app,
    scripted_backend,
)
from maka.runtime.backends.scripted import Faults, Never, Permission, Question
from maka.runtime.composition import RunComposition
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.authority import InteractionRequest, RunIdentity
from maka.runtime.lifecycle import Lifecycle
from maka.runtime.scripted import Fail
from support.disks import FaultyDisk
from support.drafts import header
from support.lineages import COMPOSITION

Meeting = Callable[["Place"], Coroutine[Any, Any, BaseException]]
QUICK = Deadlines(stop=0.1, dispose=0.1, after_step=0.2, exit=0.2, grace=0.05)
SCENES: list[tuple[type[BaseException], Meeting, str]] = []


def meets(kind: type[BaseException], says: str) -> Callable[[Meeting], Meeting]:
    """The scene gives an error of exactly this class, and its whole message matches ``says``."""

    def note(scene: Meeting) -> Meeting:
        SCENES.append((kind, scene, says))
        return scene

    return note


class Place:
    """A root directory, and managers over it whose backend plays ``script``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.told: list[LifecycleEvent] = []

    def manager(self, *script: Any, **options: Any) -> SessionManager:
        app = App(backends={"scripted": scripted_backend(script, **options)}, default_backend="scripted")
        manager = SessionManager(self.root, app=app, deadlines=QUICK)
        manager.subscribe(self.told.append)
        return manager


async def caught(work: Any) -> BaseException:
    """What it raises."""
    with pytest.raises(BaseException) as found:
        await work
    return found.value


async def drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def closed(manager: SessionManager) -> None:
    """Whatever the backend does wrong, the scene is over."""
    await asyncio.gather(manager.aclose(), return_exceptions=True)


# ---------------------------------------------------------------- sessions


@meets(errors.SessionBusy, r"session s1 is busy with turn t1; stop it or wait for its end")
async def a_busy_session_is_put_away(place: Place) -> BaseException:
    async with place.manager(Never()) as manager:
        await manager.create(session_id="s1")
        async with manager.send("s1", "go", turn_id="t1") as stream:
            await stream.started()
            error = await caught(manager.archive("s1"))
            assert str(await caught(manager.delete("s1"))) == str(error)
    return error


@meets(errors.SessionArchived, r"session s1 is archived and takes no turns; `unarchive` it first")
async def a_session_that_was_put_away_is_sent_a_message(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        await manager.archive("s1")
        error = await caught(drained(manager.send("s1", "go")))
        await manager.unarchive("s1")
        await drained(manager.send("s1", "go"))
    return error


@meets(
    errors.ForkRefused, r"session s1 has no closed turn t9 of its own; name one that has ended, or none for the newest"
)
async def a_fork_at_a_turn_that_is_not_there(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        await drained(manager.send("s1", "go"))
        error = await caught(manager.fork("s1", turn_id="t9"))
        assert await manager.fork("s1")
    return error


@meets(
    errors.TurnCancelled,
    r"turn t2 of session s1 was stopped before it began; nothing of it was written, start it again if it is still "
    r"wanted",
)
async def a_turn_that_waits_is_stopped(place: Place) -> BaseException:
    async with place.manager(Never()) as manager:
        await manager.create(session_id="s1")
        async with manager.send("s1", "go", turn_id="t1") as first:
            await first.started()
            second = manager.send("s1", "and this", turn_id="t2")
            starting = asyncio.create_task(second.started())
            while manager.status("s1").turns != ["t1", "t2"]:
                await asyncio.sleep(0)
            await manager.stop("s1")
            error = await caught(starting)
        assert [turn["turn_id"] for turn in (await manager.read("s1")).turns()] == ["t1"]
    return error


# ---------------------------------------------------------------- backends


@meets(
    errors.BackendUnknown,
    r"no backend 'other' is registered \(there are: scripted\); register it, or name another for the session",
)
async def a_session_for_a_backend_that_is_not_there(place: Place) -> BaseException:
    async with place.manager() as manager:
        return await caught(manager.create(backend="other"))


@meets(
    errors.BackendUnknown, r"no backend 'gone' is registered \(there are: scripted\); register it, or name another.*"
)
async def a_session_whose_backend_is_gone(place: Place) -> BaseException:
    FileJournals(place.root).store.create(header("s1", backend="gone")).close()
    async with place.manager() as manager:
        return await caught(drained(manager.send("s1", "go")))


@meets(
    errors.BackendTimeout,
    r"stop\(\) did not return within 0\.1 s, and backend 'scripted' of session s1 is given up; "
    r"mend it, or give it more time",
)
async def a_backend_that_does_not_stop(place: Place) -> BaseException:
    async with place.manager(Never(), faults=Faults(stop_delay=60)) as manager:
        await manager.create(session_id="s1")
        stream = manager.send("s1", "go")
        await stream.started()
        # Everybody who asks is told the same.
        error, same = await asyncio.gather(caught(manager.stop("s1")), caught(manager.stop("s1")))
        assert same is error
        await drained(stream)
        [turn] = (await manager.read("s1")).turns()
        assert turn["reason"]["kind"] == "aborted"
    return error


@meets(errors.RuntimeFailure, r"stop\(\) of backend 'scripted' of session s1 cancelled itself; mend the backend")
async def a_backend_that_cancels_its_own_stop(place: Place) -> BaseException:
    failure: Any = asyncio.CancelledError()
    async with place.manager(Never(), faults=Faults(stop_error=failure)) as manager:
        await manager.create(session_id="s1")
        stream = manager.send("s1", "go")
        await stream.started()
        error = await caught(manager.stop("s1"))
        await drained(stream)
    return error


@meets(
    errors.SessionQuarantined,
    r"session s1 is quarantined: its backend failed to stop \(the plug is stuck\) and its run has not ended; "
    r"try again when it has",
)
async def a_turn_for_a_backend_that_is_still_at_work(place: Place) -> BaseException:
    go_on = asyncio.Event()
    stuck = Faults(stop_error=RuntimeError("the plug is stuck"), ignore_stop=True, ignore_dispose=True)
    async with place.manager(Wait(until=go_on), "hello", faults=stuck) as manager:
        await manager.create(session_id="s1")
        stream = manager.send("s1", "go")
        await stream.started()
        assert str(await caught(manager.stop("s1"))) == "the plug is stuck"
        error = await caught(drained(manager.send("s1", "once more")))
        assert isinstance(error, errors.SessionQuarantined)
        assert not error.permanent
        assert manager.status("s1").quarantined == str(error)
        assert "quarantine" in [finding.code for finding in (await manager.read("s1")).findings]
        go_on.set()
        await drained(stream)
        await drained(manager.send("s1", "once more"))
        assert manager.status("s1").quarantined is None
    return error


@meets(
    errors.SessionQuarantined,
    r"session s1 is permanently quarantined: a backend could not be disposed \(it is welded shut\); what is in the "
    r"journal is safe, start a new process to go on",
)
async def a_turn_for_a_backend_that_could_not_be_disposed(place: Place) -> BaseException:
    broken = Faults(stop_error=RuntimeError("no"), dispose_error=RuntimeError("it is welded shut"))
    manager = place.manager(Never(), faults=broken)
    await manager.create(session_id="s1")
    stream = manager.send("s1", "go")
    await stream.started()
    await caught(manager.stop("s1"))
    error = await caught(drained(manager.send("s1", "once more")))
    assert isinstance(error, errors.SessionQuarantined)
    assert error.permanent
    await closed(manager)
    # What it says to do helps.
    async with place.manager("hello") as another:
        await drained(another.send("s1", "once more"))
    return error


@meets(errors.KernelClosed, r"the manager of these sessions was closed; make a new one to go on")
async def a_message_after_the_end(place: Place) -> BaseException:
    async with place.manager() as manager:
        await manager.create(session_id="s1")
    return await caught(drained(manager.send("s1", "go")))


# ---------------------------------------------------------------- interactions


@meets(errors.InteractionRefused, r"session s1 has no interaction i9; look at those that wait in it")
async def an_answer_to_nothing(place: Place) -> BaseException:
    async with place.manager() as manager:
        await manager.create(session_id="s1")
        error = await caught(manager.answer("s1", "i9", {"kind": "permission_answer", "decision": "allow"}))
    assert isinstance(error, errors.InteractionRefused)
    assert error.code == "not_found"
    return error


@meets(
    errors.InteractionRefused,
    r"interaction \w+ was given another answer \(allow\); the first outcome stands, "
    r"and `SessionManager.interaction` shows it",
)
async def a_second_answer(place: Place) -> BaseException:
    async with place.manager([Permission("write"), "done"]) as manager:
        await manager.create(session_id="s1")
        async with manager.send("s1", "go") as stream:
            shown = [event.data["interaction_id"] async for event in _until(stream, "permission_request")]
            await manager.answer("s1", shown[-1], {"kind": "permission_answer", "decision": "allow"})
            error = await caught(manager.answer("s1", shown[-1], {"kind": "permission_answer", "decision": "deny"}))
            await drained(stream)
    assert isinstance(error, errors.InteractionRefused)
    assert error.code == "already_resolved"
    return error


async def _until(stream: Any, kind: str) -> Any:
    """The event of this kind; what comes before it is passed over."""
    async for event in stream:
        if event.kind == kind:
            yield event
            return


@meets(
    errors.RuntimeInteractionInvariantError,
    r"this kernel has an interaction authority: answer through it, so that the answer is durable first",
)
async def an_answer_past_the_authority(place: Place) -> BaseException:
    async with place.manager() as manager:
        await manager.create(session_id="s1")
        return await caught(manager.kernel.respond_to_user_question("s1", {"request_id": "i1", "answers": ["Yes"]}))


class Unclosed:
    """An owner whose close fails."""

    def __init__(self, identity: RunIdentity, failure: Exception) -> None:
        self.session_id, self.turn_id, self.run_id = identity.session_id, identity.turn_id, identity.run_id
        self.failure = failure

    async def accept_user_question_request(self, request: InteractionRequest, /) -> None:
        raise NotImplementedError

    accept_permission_request = accept_sandbox_boundary_request = accept_user_question_request

    async def close(self, reason: str, /) -> None:
        raise self.failure

    def release(self) -> None:
        raise AssertionError("it was not closed")


class Authority:
    """One whose owners cannot be closed."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    def bind_run(self, identity: RunIdentity, /) -> Unclosed:
        return Unclosed(identity, self.failure)


@meets(
    errors.RuntimeInteractionFailStopError,
    r"what was answered in run r1 of session s1 is not certain, because its interactions could not be closed \(the "
    r"line is dead\); look at them before it goes on",
)
async def interactions_that_cannot_be_closed(place: Place) -> BaseException:
    failure = ConnectionError("the line is dead")
    kernel = _kernel(place, Authority(failure), Never())
    stream = kernel.start_turn("s1", text="go", run_id="r1")
    await stream.started()
    error = await caught(kernel.stop_session("s1"))
    assert isinstance(error, errors.RuntimeInteractionFailStopError)
    assert error.authority_failure is failure
    assert error.__cause__ is failure
    await asyncio.gather(kernel.aclose(), return_exceptions=True)
    return error


def _kernel(place: Place, authority: Any, *script: Any, disk: Fs = REAL, faults: Faults | None = None) -> RuntimeKernel:
    journals = FileJournals(place.root, fs=disk)
    journals.store.create(header("s1", backend="scripted")).close()
    registry = BackendRegistry()
    registry.register("scripted", scripted_backend(script, faults=faults))
    return RuntimeKernel(journals=journals, backends=registry, interaction_authority=authority, deadlines=QUICK)


@meets(
    errors.RuntimeOwnerCleanupError,
    r"stopping run r1 failed in several ways: RuntimeError: the plug is stuck; what "
    r"was answered in run r1 .* look at them before it goes on.*",
)
async def a_stop_that_fails_in_several_ways(place: Place) -> BaseException:
    stuck = RuntimeError("the plug is stuck")
    kernel = _kernel(place, Authority(OSError("the line is dead")), Never(), faults=Faults(stop_error=stuck))
    stream = kernel.start_turn("s1", text="go", run_id="r1")
    await stream.started()
    error = await caught(kernel.stop_session("s1"))
    assert isinstance(error, errors.RuntimeOwnerCleanupError)
    assert isinstance(error.cause, ExceptionGroup)
    assert error.cause.exceptions[0] is stuck
    assert [type(failure) for failure in error.cause.exceptions] == [
        RuntimeError,
        errors.RuntimeInteractionFailStopError,
    ]
    await asyncio.gather(kernel.aclose(), return_exceptions=True)
    return error


# ---------------------------------------------------------------- continuations


@meets(
    errors.ContinuationParked,
    r"the plan for session s1 does not continue \(resume_candidate_missing\); its diagnostics say what to do, then "
    r"plan again",
)
async def a_plan_that_parks_is_resumed(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        await drained(manager.send("s1", "go"))
        plan = await manager.plan_safe_boundary_continuation("s1")
        with pytest.raises(errors.ContinuationParked) as found:
            manager.resume_safe_boundary_continuation(plan)
    return found.value


@meets(
    errors.ContinuationRevalidationError,
    r"the plan to continue run r1 of session s1 does not hold any more: claim \w+ is in the journal already\. Plan "
    r"again: .*",
)
async def a_plan_is_resumed_twice(place: Place) -> BaseException:
    async with place.manager(Fail("gone"), "hello") as manager:
        await manager.create(session_id="s1")
        await drained(manager.kernel.start_turn("s1", text="go", run_id="r1"))
        plan = await manager.plan_safe_boundary_continuation("s1")
        await drained(manager.resume_safe_boundary_continuation(plan))
        error = await caught(drained(manager.resume_safe_boundary_continuation(plan)))
    assert isinstance(error, errors.ContinuationRevalidationError)
    assert error.code == "continuation_claim_conflict"
    return error


@meets(errors.SettleRefused, r"there is no claim c9; no claim of this session is to be settled")
async def a_claim_that_is_not_there_is_settled(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        return await caught(manager.settle_indeterminate_continuation("s1", "c9"))


# ---------------------------------------------------------------- handoffs, copies, plans


@meets(
    errors.HandoffRefused,
    r"run r1 of session s1 came to no step boundary within 0\.05 s, and goes on; try again with more time",
)
async def a_run_that_comes_to_no_boundary_is_to_be_handed_over(place: Place) -> BaseException:
    async with place.manager(Never(), composition=RunComposition.from_json(COMPOSITION)) as manager:
        await manager.create(session_id="s1")
        async with manager.kernel.start_turn("s1", text="go", run_id="r1") as stream:
            await stream.started()
            error = await caught(manager.hand_over("s1", timeout=0.05))
    assert isinstance(error, errors.HandoffRefused)
    assert error.code == "not_reached"
    return error


@meets(errors.SettleRefused, r"there is no handoff h9; no handoff of this session is pending")
async def a_handoff_that_is_not_there_is_given_up(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        error = await caught(manager.abandon_handoff("s1", "h9"))
    assert isinstance(error, errors.SettleRefused)
    assert error.code == "handoff_unknown"
    return error


@meets(
    errors.CopyRefused,
    r"turns are not copied from one session into another; fork the session instead behind a turn that has ended, "
    r"which keeps them as they are",
)
async def a_turn_is_copied(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        await drained(manager.send("s1", "go", turn_id="t1"))
        error = await caught(manager.copy_turns("s1", ["t1"]))
        assert [row["session_id"] for row in await manager.list()] == ["s1"], "before there is a new one"
    assert isinstance(error, errors.CopyRefused)
    assert error.code == "copy_not_offered"
    return error


@meets(
    errors.PlanRefused,
    r"plan \w+ is at revision 2, and revision 1 was to be approved; read the newest, then approve that",
)
async def a_plan_that_was_revised_is_approved(place: Place) -> BaseException:
    async with place.manager("hello") as manager:
        await manager.create(session_id="s1")
        first = await manager.plans.propose("s1", title="it", steps=[])
        await manager.plans.propose("s1", title="and that", steps=[], proposal_id=first["proposal_id"])
        error = await caught(manager.plans.approve("s1", first["proposal_id"], expected_revision=1))
    assert isinstance(error, errors.PlanRefused)
    assert error.code == "revision_conflict"
    return error


# ---------------------------------------------------------------- the app


@meets(
    errors.AppError,
    r"no app is named, so there is nothing to run; name one as `module:object` with --app, in the environment variable "
    r"MAKA_APP, or as `app` below `\[maka\]` in .*config\.toml",
)
async def nothing_to_run(place: Place) -> BaseException:
    with pytest.raises(errors.AppError) as found:
        load_app(None, place.root, {}, place.root)
    return found.value


@meets(
    errors.AppError,
    r"`default_backend` is 'other', which is none of its backends; there are: `scripted`",
)
async def an_app_that_contradicts_itself(place: Place) -> BaseException:
    with pytest.raises(errors.AppError) as found:
        App(backends={"scripted": scripted_backend([])}, default_backend="other")
    return found.value


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize(("kind", "scene", "says"), SCENES, ids=[scene.__name__ for _, scene, _ in SCENES])
def test_a_person_is_told_what_happened_and_what_to_do(
    kind: type[BaseException], scene: Meeting, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "maka.runtime")
    error = asyncio.run(scene(Place(tmp_path / "root")))
    assert type(error) is kind, repr(error)
    with pytest.raises(kind, match=rf"\A{says}\Z"):
        raise error
    text = str(error).lower()
    assert "\n" not in text
    for advice in ("delete", "remove", "rm "):
        assert advice not in text


def test_no_class_is_left_out() -> None:
    classes = {value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__}
    assert {kind for kind, _, _ in SCENES} == classes
    assert all(issubclass(kind, errors.RuntimeFailure) for kind in classes)


def test_an_answer_of_which_nobody_knows_whether_it_was_written(tmp_path: Path) -> None:
    """The disk fails in the middle of an answer: whoever answered and whoever stops is told, and a reopen decides."""

    async def main() -> None:
        place, disk = Place(tmp_path / "root"), FaultyDisk()

        def opened(session_id: str) -> OpenSession | None:
            return kernel.opened(session_id)

        authority = JournalInteractions(opened, lifecycle=Lifecycle())
        kernel = _kernel(place, authority, [Question("Go on?"), "done"], "hello", disk=disk)
        stream = kernel.start_turn("s1", text="go", run_id="r1")
        [event] = [event async for event in _until(stream, "question_request")]
        disk.fail("sync", errno.EIO)
        answer = {"kind": "question_answer", "answers": ["Yes"]}
        interaction_id = event.data["interaction_id"]
        lost = await caught(authority.answer("s1", interaction_id, answer))
        stopped = await caught(kernel.stop_session("s1"))
        assert lost in _inside(stopped)
        assert any(isinstance(error, errors.RuntimeInteractionFailStopError) for error in _inside(stopped))
        await asyncio.gather(drained(stream), return_exceptions=True)
        # The next turn opens the journal again, and puts it in order first.
        await drained(kernel.start_turn("s1", text="go"))
        row = await authority.query("s1", interaction_id)
        assert row["status"] == "closed"
        refused = await caught(authority.answer("s1", interaction_id, answer))
        assert isinstance(refused, errors.InteractionRefused)
        assert refused.code == "already_resolved"
        await kernel.aclose()

    asyncio.run(main())
    rollback._beyond.clear()


def _inside(error: BaseException) -> list[BaseException]:
    """An error and all that it stands for."""
    found = [error]
    for inner in (getattr(error, "cause", None), getattr(error, "authority_failure", None)):
        found += _inside(inner) if inner is not None else []
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        found += _inside(inner)
    return found
