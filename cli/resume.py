"""Goes on with what was cut off or handed over: recovers it, plans, runs what was planned, settles. Gives documents."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final, NoReturn

import attrs

from ..journal.errors import JournalDamaged, JournalError, JournalUnsupported
from ..journal.events import Event, JsonObject, Recovery
from ..journal.reader import JOURNAL, resolve
from ..journal.shapes import SESSION_ID
from ..journal.store import SESSIONS
from ..repair.apply import refuse_locked, repair
from ..repair.plan import appended_json
from ..repair.session import Session, inspect, survey
from ..runtime.app import App, load_app
from ..runtime.app.naming import find_app
from ..runtime.app.telling import Telling
from ..runtime.continuation.safety import SafetyObservation, look
from ..runtime.errors import ContinuationRevalidationError, RuntimeFailure
from ..runtime.permissions import stance
from ..runtime.sessions import SessionManager
from . import exits, naming, onward, through
from .documents import Answer, Doc, place_of_config
from .failures import failure_of
from .onward import Words
from .render import words
from .signals import Interrupt

if TYPE_CHECKING:
    from ..runtime.backends.base import Backend, BackendContext
    from ..runtime.continuation.plan import Continuation, ContinuationPlan
    from ..runtime.kernel.stream import TurnStream
    from .live import Live

#: Who stops a turn, as its end will say: a person at the keyboard, and the command that finds nobody to answer.
_PERSON: Final = "user"
_NOBODY: Final = "nobody_to_answer"
#: The mode in which no call asks.
_ASKS_NOTHING: Final = "bypass"
#: The remark of a plan that goes on from a run that has completed.
_COMPLETED: Final = "source_completed"


@attrs.frozen
class Place:
    """A session by its journal. ``root`` is the root that it lies below, if it lies where a root has its sessions."""

    path: Path
    session_id: str
    root: Path | None

    def survey(self) -> Session:
        """What its journal holds."""
        return survey(self.path)

    def manager(self, app: App | None) -> SessionManager:
        """A manager for it. Without an app it plans and settles, and runs nothing."""
        places = {} if self.root is not None else {self.session_id: self.path}
        return SessionManager(self.root, app=app or _nothing_to_run(self.path), places=places)


def place_of(target: str, root: str | None) -> Place:
    """Where a session is. Raises SessionNotFound."""
    path = resolve(target, root)
    directory = path.absolute().parent
    named = path.name == JOURNAL and SESSION_ID.fullmatch(directory.name)
    if named and directory.parent.name == SESSIONS:
        return Place(path, directory.name, directory.parents[1])
    return Place(path, survey(path).session_id, None)


# ---------------------------------------------------------------- what runs


def app_of(name: str | None, root: str | None) -> App | None:
    """The app that is named; None where none is. Imports it. Raises AppError.

    The root of a path is not asked: whoever made the session's folder does not say what runs here.
    """
    place = place_of_config(root)
    if find_app(name, place, os.environ) is None:
        return None
    return load_app(name, place, os.environ, Path.cwd())[0]


def refuse_without_app(root: str | None) -> NoReturn:
    """Raises the AppError that says how one is named."""
    load_app(None, place_of_config(root), os.environ, Path.cwd())
    raise AssertionError("there was none a moment ago")


def _nothing_to_run(path: Path) -> App:
    """In place of an app: nobody has said that the session's backend is not there."""
    backend = str(survey(path).settings()["backend"] or "none")
    return App(backends={backend: _no_backend}, default_backend=backend, safety_inspector=_Unnamed(path))


def _no_backend(context: "BackendContext") -> "Backend":
    raise RuntimeFailure("no app is named, so there is no backend; name one with --app")


@attrs.frozen
class _Unnamed:
    """Where nobody says which tools there are, those that the session has called count as there."""

    path: Path

    async def inspect_continuation_safety(self, session_id: str) -> SafetyObservation:
        view = await asyncio.to_thread(inspect, self.path)
        called = {
            block["name"]
            for message in view.messages()
            for block in message["content"]
            if block.get("kind") == "tool_call" and isinstance(block.get("name"), str)
        }
        return await look(str(view.settings()["cwd"] or ""), called, settled=True)


# ---------------------------------------------------------------- recover and plan


@attrs.frozen
class Meant:
    """What is to go on: the run, if one was named. ``handoff``: what is resumed is this one's turn, by its successor.

    ``waits``: the handoff that waits in the session, whatever is resumed. A successor that was cut off behind its start
    waits no more, and why it cannot go on is told by a plan for its handoff. ``stuck``: its ids are taken.
    """

    run_id: str | None
    handoff: onward.Doc | None
    waits: onward.Doc | None
    stuck: bool


def meant_by(place: Place, typed: str | None) -> Meant:
    """What was meant; a beginning of a run's id is enough. Raises naming.Unclear."""
    session = place.survey()
    turns, handoffs = session.turns(), session.handoffs()
    run_id = None if typed is None else naming.run(typed, session.runs(), turns)
    waits = onward.waiting(handoffs, turns)
    handoff = onward.cut_off(handoffs, turns) if waits is None else waits
    stuck = onward.stuck(session.findings)
    if handoff is None:
        return Meant(run_id, None, waits, stuck)
    chain = next(turn["run_ids"] for turn in turns if turn["turn_id"] == handoff["turn_id"])
    if run_id is None or run_id in (*chain, handoff["successor_run_id"]):
        return Meant(handoff["run_id"], handoff, waits, stuck)
    return Meant(run_id, None, waits, stuck)


async def planned(
    manager: SessionManager,
    place: Place,
    meant: Meant,
    *,
    rerun: Iterable[Recovery],
    mode: str | None,
    dry: bool,
    app: App | None,
) -> "tuple[ContinuationPlan, Answer]":
    """The plan for the session, which is recovered before unless ``dry``; and the answer, if nothing is run.

    ``mode`` is the permission mode that the session is given behind the recovery; ``app`` the one that was named.
    Raises JournalLocked for a session that somebody has open, and other JournalErrors for what cannot be read or
    written.
    """
    recovered = None
    if dry:
        _refuse(place.path)
    else:
        recovered = await _recovered(manager, place)
        if mode is not None:
            await manager.update(place.session_id, {"permission_mode": mode})
    plan = await manager.plan_safe_boundary_continuation(
        place.session_id,
        source_run_id=meant.run_id,
        purpose="resume" if meant.handoff is None else "handoff",
        rerun=rerun,
        repaired=dry,
    )
    said = plan.to_json()
    doc: Doc = {
        "session_id": place.session_id,
        "path": str(place.path),
        "recovered": recovered,
        **{key: said[key] for key in ("disposition", "rejection_reasons", "diagnostics")},
        "source_run_id": plan.source_run_id,
        "continuation": said["continuation"],
        "turn": None,
    }
    if app is None:
        # Those that were not called are not looked for.
        doc["diagnostics"] = [row for row in doc["diagnostics"] if row["code"] != "tools_missing"]
        # Where it goes on for real, whoever runs it says that there is no app.
        concerned = [*plan.rejection_reasons, *([plan.disposition] if dry else [])]
        doc["diagnostics"] += [
            {"code": "app_missing", "message": _APP_MISSING[code]} for code in concerned if code in _APP_MISSING
        ]
    if meant.waits is not None and plan.continuation is None:
        waits = f"Turn {meant.waits['turn_id']} waits for run {meant.waits['successor_run_id']}, to which it was handed"
        ways = "Let that go on, once nothing stands in its way" if meant.handoff is None else "Mend that and try again"
        command = onward.given_up(meant.waits, quote(place.session_id))
        up = f"{ways}; or give the handoff up with `{command}`: then the turn has failed, and can be resumed"
        message = f"{waits}, {onward.STUCK}." if meant.stuck else f"{waits}. {up}."
        others = [row for row in doc["diagnostics"] if row["code"] != "handoff_pending"]
        doc["diagnostics"] = [*others, {"code": "handoff_pending", "message": message}]
    if meant.handoff is not None and plan.continuation is not None:
        doc["diagnostics"] += _nobody(app, plan.continuation, quote(place.session_id))
    if meant.run_id is not None and plan.rejection_reasons == ("source_run_unreadable",):
        rule = f" Of its id a beginning is enough, of {naming.LEAST} characters at least."
        doc["diagnostics"] = [{**row, "message": row["message"] + rule} for row in doc["diagnostics"]]
        return plan, Answer(doc, exits.USAGE)
    return plan, Answer(doc, exits.OF_PLAN[plan.disposition])


def _nobody(app: App | None, successor: "Continuation", session: str) -> list[Doc]:
    """Told of a successor whose tools may ask: it has the mode of the run that was paused, and nobody answers here."""
    mode = str(successor.configuration["permission_mode"])
    asking = None if app is None else _asking(app, successor.configuration["backend"], mode)
    if mode == _ASKS_NOTHING or asking == []:
        return []
    named = f" (`{asking[0]}` is one)" if asking else ""
    message = (
        f"The successor has the permission mode `{mode}` of the run that was paused, and nobody can answer here: if it "
        f"calls a tool that asks{named}, its turn is stopped. Let it go on in a program that answers; or go on from "
        f"the turn that was stopped with `maka session resume {session} --permission-mode MODE`."
    )
    return [{"code": _NOBODY, "message": message}]


def _asking(app: App, backend: str, mode: str) -> list[str] | None:
    """The tools of the backend whose calls may ask; None where its factory does not tell which it has."""
    told = Telling(app, {"backend": backend})
    return [tool.name for tool in told.tools if stance(mode, tool) != "runs"] if told.tells_tools else None


#: Where it matters that nobody has named an app: a disposition or a reason → what nobody has looked at.
_APP_MISSING: Final = {
    "continue": "no app is named, so nobody has looked whether the tools that the run called are still there; name one "
    "with --app",
    "dangling_tool_state": "no app is named, so no tool was asked what became of its call; name one with --app (with "
    "--plan none is asked)",
}


def _refuse(path: Path) -> None:
    """Raises what a recovery would be refused with. Writes nothing."""
    report = repair(path, dry_run=True)
    if report.refused is not None:
        kind = {"damaged": JournalDamaged, "unsupported": JournalUnsupported}.get(report.verdict_before, JournalError)
        raise kind(f"{path}: {report.refused}", path=path)


async def _recovered(manager: SessionManager, place: Place) -> JsonObject:
    found = await manager.recover(place.session_id)
    while found.state == "open":
        # Whoever had it may have closed it since.
        refuse_locked(Path(os.path.realpath(place.path)).parent)
        found = await manager.recover(place.session_id)
    if found.error is not None:
        raise found.error
    said: JsonObject = {"state": found.state, "appended": found.appended, "reconciled": found.reconciled}
    return {**said, "interrupted": found.interrupted, "interrupted_plan": _plan_of(place, found.interrupted)}


def _plan_of(place: Place, execution_id: str | None) -> str | None:
    """The plan whose execution that is."""
    plans = [] if execution_id is None else place.survey().plans()
    executed = (plan for plan in plans if (plan["execution"] or {}).get("execution_id") == execution_id)
    return next((plan["proposal_id"] for plan in executed), None)


def boundary_of(place: Place, continuation: "Continuation") -> Doc:
    """Where the continuation goes on from: ``{seq, role?, call_id?, left_out: [{seq, text}]}``.

    The message or result that it stands behind, and what was said after that and is left out.
    """
    turns = {segment["turn_id"] for segment in continuation.boundary["segments"]}
    entries = [entry for entry in place.survey().history().annotated() if entry["turn_id"] in turns]
    entries = [entry for entry in entries if entry.get("mark") != "hidden"]
    through = continuation.replay_through_seq
    # Where an outcome stands in place of a result, the result's own event is no entry any more.
    placed = [entry for entry in entries if entry["seq"] == through] or [
        entry for entry in entries if str(entry.get("mark")).startswith("outcome") and entry["role"] == "tool"
    ]
    anchor = placed[-1] if placed else None
    said = [entry for entry in entries if entry["role"] == "assistant" and entry["seq"] > through]
    out: Doc = {"seq": through, "left_out": [{"seq": each["seq"], "text": words(each["content"])} for each in said]}
    if anchor is not None:
        out["role"] = anchor["role"]
        out["call_id"] = next((block.get("call_id") for block in anchor["content"]), None)
    return out


def unasked(answer: Answer) -> Answer | None:
    """The answer in place of a run that would take a completed one's answer from the model; None where none does."""
    said = next((row["message"] for row in answer.doc["diagnostics"] if row["code"] == _COMPLETED), None)
    if said is None:
        return None
    refusal = f"nothing was run yet. {said.removesuffix('.')}, and give `--again` if it is"
    return Answer(answer.doc, exits.PENDING, refusal)


# ---------------------------------------------------------------- run


async def run(
    manager: SessionManager,
    continuation: "Continuation",
    doc: Doc,
    live: "Live | None",
    *,
    words: Words,
    told: Interrupt,
    handoff: onward.Doc | None = None,
) -> Answer:
    """Carries out what was planned, and gives the whole answer. A turn that asks a person is stopped: none can answer.

    ``live`` is told what happens; ``words`` are for commands; ``handoff`` is the one that the plan is for. When this is
    cancelled the turn is stopped, and the answer says how it has ended, with the exit code of ``told``. Raises what
    keeps the run from starting.
    """
    stream = manager.resume_safe_boundary_continuation(continuation)
    refusal: str | None = None
    code: int | None = None
    try:
        try:
            await stream.started()
            if live is not None:
                live.begun(stream.run_id, stream.turn_id)
            async for event in stream:
                if live is not None:
                    live.tell(event)
                if refusal is None and (ask := _ASKS.get(event.kind)) is not None:
                    mode = continuation.configuration["permission_mode"]
                    refusal = f"the turn was stopped: {ask(event.data, mode, words.resume)}"
                    doc["diagnostics"].append({"code": "answer_needed", "message": refusal})
                    await manager.stop(continuation.session_id, source=_NOBODY)
        except asyncio.CancelledError:
            code = told.code
            await manager.stop(continuation.session_id, source=_PERSON)
            async for _ in stream:
                pass
    except ContinuationRevalidationError as error:
        refusal, code = str(error), code or exits.PENDING
        if handoff is not None and stream.reason is None:
            refusal += f" Or give the handoff up: `{onward.given_up(handoff, words.session)}`"
        doc["diagnostics"].append({"code": error.code, "message": refusal})
    except (RuntimeFailure, JournalError) as error:
        if stream.reason is None and code is None:
            raise
        # The turn has its end, or was stopped before it began; what failed came behind that.
        failure = failure_of(error)
        refusal, code = failure.sentence, code or failure.code
    doc["turn"] = _turn(stream)
    if stream.pause is not None and code is None:
        doc["turn"] = {"turn_id": stream.turn_id, "run_id": stream.run_id, "status": "paused", "reason": None}
        refusal = "the turn was handed over again while it ran here, and is not done; its next run goes on with "
        refusal += f"`{words.resume}`"
    if code is None:
        code = exits.PENDING if stream.reason is None else exits.OF_TURN[stream.reason["kind"]]
    return Answer(doc, code, refusal)


def _turn(stream: "TurnStream") -> JsonObject | None:
    reason = stream.reason
    if reason is None:
        return None
    return {"turn_id": stream.turn_id, "run_id": stream.run_id, "status": reason["kind"], "reason": reason}


def _permission(data: JsonObject, mode: object, command: str) -> str:
    return (
        f"`{data['name']}` waits for a permission ({data['reason']}), and nobody can answer here. The turn has ended; "
        f"go on from it in a permission mode in which that runs, which `{mode}` is not (`maka app show` tells what "
        f"asks in which), with `{command} --permission-mode MODE`, or in a program that answers"
    )


def _question(data: JsonObject, mode: object, command: str) -> str:
    return (
        f"it asks a person ({data['questions'][0]['question']}), and nobody can answer here. The turn has ended; "
        "go on from it in a program that answers, or send the answer as a message"
    )


def _boundary(data: JsonObject, mode: object, command: str) -> str:
    return (
        f"it asks to leave its sandbox ({data['justification']}), and nobody can answer here. The turn has ended; "
        "go on from it in a program that answers"
    )


#: Kinds of events with which a run asks a person → why its turn was stopped, given the session's permission mode and
#: the command that resumes it.
_ASKS: Final[dict[str, Callable[[JsonObject, object, str], str]]] = {
    "permission_request": _permission,
    "question_request": _question,
    "sandbox_boundary_request": _boundary,
}


# ---------------------------------------------------------------- settle


async def settled(
    place: Place, *, claim: str | None, handoff: str | None, call: str | None, ok: bool, text: str | None
) -> Doc:
    """Settles a claim, a handoff, or a call with this outcome, and gives the answer of `settle`. ``text`` is what came
    of the call, or why the handoff is given up.

    A beginning of an id is enough. Nothing is appended where the same of a call was stated before. Raises
    naming.Unclear, SettleRefused, JournalLocked for a session that somebody has open, and other JournalErrors.
    """
    session = place.survey()
    async with place.manager(None) as manager:
        if claim is not None:
            claim = naming.claim(claim, session.continuations())
            events = await manager.settle_indeterminate_continuation(place.session_id, claim)
        elif handoff is not None:
            handoff = naming.handoff(handoff, session.handoffs())
            events = await manager.abandon_handoff(place.session_id, handoff, text)
        else:
            call = naming.call(call or "", session.unknown_calls(), session.turns())
            events = await manager.settle_call(place.session_id, call, ok=ok, text=text)
    return {
        "session_id": place.session_id,
        "path": str(place.path),
        "call": None if call is None else _called(place, call, events),
        "handoff": None if handoff is None else _handed_over(place, handoff),
        "appended": appended_json(events),
    }


async def archived(place: Place, *, archived: bool) -> Doc:
    """Of `archive`: ``{session_id, path, archived, revision}``. Done by the host of the root where one runs."""
    revision = await through.archived(place.root, place.session_id, archived=archived)
    if revision is None:
        async with place.manager(None) as manager:
            revision = await (manager.archive if archived else manager.unarchive)(place.session_id)
    return {"session_id": place.session_id, "path": str(place.path), "archived": archived, "revision": revision}


def _handed_over(place: Place, handoff_id: str) -> JsonObject:
    """Its row, and the number of its turn."""
    session = place.survey()
    row = next(row for row in session.handoffs() if row["handoff_id"] == handoff_id)
    return {**row, "turn": next(turn["turn"] for turn in session.turns() if turn["turn_id"] == row["turn_id"])}


def _called(place: Place, name: str, events: Sequence[Event]) -> JsonObject:
    """``{call_id, name, turn, outcome, outcome_source}`` of the call that was settled, now or before."""
    call_id = events[0].data["call_id"] if events else name
    turn_id = events[0].data["turn_id"] if events else None
    found = [
        {"call_id": call["call_id"], "name": call["name"], "turn": turn["turn"], **_outcome(call)}
        for turn in place.survey().turns()
        for call in turn["calls"]
        if call["call_id"] == call_id and "outcome" in call and turn_id in (None, turn["turn_id"])
    ]
    return found[-1] if found else {"call_id": call_id}


def _outcome(call: JsonObject) -> JsonObject:
    return {key: call.get(key) for key in ("outcome", "outcome_source")}
