"""What can be done next with a session, as its read models tell it: commands, and why. No I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from shlex import quote
from typing import Any, Final

import attrs

from .text import line

Doc = Mapping[str, Any]
Step = dict[str, str | None]

#: Steps for calls, of many.
_CALLS: Final = 20
#: Verdicts with which a session goes on; the remedies of its findings say what comes before the others.
_GOES_ON: Final = ("healthy", "interrupted", "torn")
#: What a run is shown as that there is a reason to go on from, and how its turn ended, in words.
_RESUMED: Final = ("failed", "cancelled")
_ENDED: Final = {
    "interrupted": "was cut off",
    "failed": "failed",
    "aborted": "was stopped",
    "blocked": "was blocked",
    "step_limit": "met its limit of steps",
}
#: What a run has that goes on, beside the old one's history.
_WITH: Final = {"step_limit": " with as many steps again"}
#: What a call's tool has declared → another way than to state what came of the call.
_AGAIN: Final = ("read_only", "idempotent")
#: What came of a call, as it is stated → when that is so.
_OUTCOMES: Final = {
    "--ok": "look outside, and state this if it happened",
    "--error 'it did not happen'": "or this if it did not; the model is told these words",
}
#: How a handoff stands whose successor may still come.
_WAITS: Final = ("pending", "claimed")
#: What goes on where no command does.
#: Of a successor that can neither go on nor be given up.
STUCK: Final = (
    "whose ids are taken: in your program, fork the session behind its last turn that ended (`manager.fork`), or begin "
    "another"
)
_MESSAGE: Final = "send a message, with `maka run --session` or in your program (`manager.send`)"


@attrs.frozen
class Words:
    """How commands name the session, and what those need behind that which run something: asked for only by these."""

    session: str
    app_words: Callable[[], str]

    @property
    def app(self) -> str:
        return self.app_words()

    @property
    def resume(self) -> str:
        return f"maka session resume {self.session}{self.app}"


def waiting(handoffs: Sequence[Doc], turns: Sequence[Doc]) -> Doc | None:
    """The handoff whose turn waits for its successor, of the rows of a session; None where no turn does."""
    return _newest(handoffs, turns, _WAITS, "paused")


def cut_off(handoffs: Sequence[Doc], turns: Sequence[Doc]) -> Doc | None:
    """The handoff of whose successor nobody knows whether it asked the model; None where there is no such turn."""
    return _newest(handoffs, turns, ("continued",), "indeterminate")


def _newest(handoffs: Sequence[Doc], turns: Sequence[Doc], states: Sequence[str], status: str) -> Doc | None:
    """The newest handoff in one of these states, of a turn of this status."""
    found = {turn["turn_id"] for turn in turns if turn["status"] == status}
    return next((row for row in reversed(handoffs) if row["state"] in states and row["turn_id"] in found), None)


def stuck(findings: Iterable[Any]) -> bool:
    """Do the findings of a session say that its handoff has no way out? As a document or a ``Session`` has them."""
    return any((each["code"] if isinstance(each, dict) else each.code) == "handoff_stuck" for each in findings)


def given_up(handoff: Doc, session: str) -> str:
    """The command that gives a handoff up, of the session as commands name it."""
    return f"maka session settle {session} --handoff {quote(handoff['handoff_id'])}"


def words_of(target: str, root: str | None) -> str:
    """TARGET as it was typed, with ``--root`` where that was, for a command that can be pasted."""
    return quote(line(target)) + ("" if root is None else f" --root {quote(line(root))}")


def steps(doc: Doc, unknown: Sequence[Doc], newest_run: str | None, words: Words, *, lost: bool = False) -> list[Step]:
    """``[{command, why}]`` for a document of `inspect`; the command is None where only a program can do it.

    ``unknown``, ``newest_run`` and ``lost`` as a ``Session`` gives them: where lines are lost no run is resumed.
    Nothing while somebody has the session open, or before damage is dealt with.
    """
    if doc["verdict"] not in _GOES_ON or doc["writer"] is not None:
        return []
    claims = [*_handoff(doc, words, lost), *_claims(doc, unknown, words, lost)]
    lineage = set() if lost else _lineage(doc, newest_run)
    calls = [step for call in unknown[:_CALLS] for step in _call(doc, call, unknown, lineage, words, lost)]
    blocked = bool(claims) or any(call["run_id"] in lineage for call in unknown)
    return [*claims, *calls, *([] if blocked else [*_queued(doc, words), *_goes_on(doc, newest_run, words, lost)])]


def _queued(doc: Doc, words: Words) -> Iterator[Step]:
    """Messages that wait are the host's, and of a host the root's."""
    queue = doc.get("queue") or {}
    waiting = [*(queue.get("steering") or ()), *(queue.get("followup") or ())]
    if not waiting or doc["settings"].get("archived") is True:
        return
    from ..journal.store import SESSIONS

    path = PurePath(str(doc.get("path")))
    if path.parent.parent.name != SESSIONS:
        return
    what = "1 message waits for a turn" if len(waiting) == 1 else f"{len(waiting)} messages wait for turns"
    command = f"maka host start --root {quote(line(path.parents[2]))}{words.app}"
    yield {"command": command, "why": f"{what}; the host of its root takes them up"}


def _handoff(doc: Doc, words: Words, lost: bool) -> Iterator[Step]:
    """A turn that waits for its successor is gone on with, or given up; nothing else happens in the session before."""
    handoff = waiting(doc["handoffs"], doc["turns"])
    if handoff is None:
        return
    number = next(turn["turn"] for turn in doc["turns"] if turn["turn_id"] == handoff["turn_id"])
    waits = f"turn {number} was handed over and waits for run {handoff['successor_run_id']}"
    if stuck(doc["findings"]):
        yield {"command": None, "why": f"{waits}, {STUCK}"}
        return
    why = next((why for why, holds in _parks(doc, handoff["run_id"], lost).items() if holds), None)
    if why is not None:
        yield {"command": given_up(handoff, words.session), "why": f"{waits}, and {why}; this gives the handoff up"}
        return
    for command in (words.resume, given_up(handoff, words.session)):
        yield {"command": command, "why": f"{waits}; let that finish it, or give the handoff up"}


def _parks(doc: Doc, run_id: str, lost: bool) -> dict[str, bool]:
    """Why nothing goes on from a run, whatever else is so."""
    return {
        "lines of the journal are lost": lost,
        "the session is archived": doc["settings"].get("archived") is True,
        "the header of its run is lost": _unreadable(doc, run_id),
    }


def _unreadable(doc: Doc, run_id: str) -> bool:
    """Is nothing on record of what a run was set up with? What claims it would say so, too."""
    bare = any(run["run_id"] == run_id and run.get("invocation_id") == "" for run in doc["runs"])
    return bare and all(claim["target"]["run_id"] != run_id for claim in doc["continuations"])


def _claims(doc: Doc, unknown: Sequence[Doc], words: Words, lost: bool) -> Iterator[Step]:
    for claim in doc["continuations"]:
        if claim["state"] == "repair_required" and (lost or _dangles(doc, claim, unknown)):
            continue  # a repair closes its run, and nothing goes on from there
        if (step := _OF_CLAIM.get(claim["state"])) is not None:
            yield step(claim, words)


def _dangles(doc: Doc, claim: Doc, unknown: Sequence[Doc]) -> bool:
    """Is there a call of unknown outcome in the claim's run, or in one that it goes back to?"""
    lineage = _lineage(doc, claim["target"]["run_id"])
    return any(call["run_id"] in lineage for call in unknown)


def _repaired(claim: Doc, words: Words) -> Step:
    why = f"claim {claim['claim_id']}: its run was cut off; this repairs the session and goes on from there"
    return {"command": words.resume, "why": why}


def _settled(claim: Doc, words: Words) -> Step:
    why = f"claim {claim['claim_id']}: whether its run asked the model is not known; look at what it may have done"
    return {"command": f"maka session settle {words.session} --claim {quote(claim['claim_id'])}", "why": why}


_OF_CLAIM: Final[dict[str, Callable[[Doc, Words], Step]]] = {
    "repair_required": _repaired,
    "started_indeterminate": _settled,
}


def _call(doc: Doc, call: Doc, unknown: Sequence[Doc], lineage: set[str], words: Words, lost: bool) -> Iterator[Step]:
    where = next((f" of turn {turn['turn']}" for turn in doc["turns"] if turn["turn_id"] == call["turn_id"]), "")
    what = f"{call['name']} ({call['call_id']}){where}: nobody knows what came of it"
    if call["operation_id"] is None:
        return  # no outcome is recorded for a call whose dispatch was lost
    if call["recovery"] == "reconcile" and not lost:
        yield {"command": words.resume, "why": f"{what}; its tool looks by itself"}
    if call["recovery"] in _AGAIN and call["run_id"] in lineage:
        yield {"command": f"{words.resume} --rerun {call['recovery']}", "why": f"{what}; its tool may be called again"}
    alone = sum(other["call_id"] == call["call_id"] for other in unknown) == 1
    settle = f"maka session settle {words.session} --call {quote(call['call_id'] if alone else call['operation_id'])}"
    # Two commands, because what stands in one is done where it is pasted.
    for outcome, how in _OUTCOMES.items():
        yield {"command": f"{settle} {outcome}", "why": f"{what}; {how}"}


def _lineage(doc: Doc, run_id: str | None) -> set[str]:
    """A run, and those that lead to it through claims."""
    sources = {claim["target"]["run_id"]: claim["source"]["run_id"] for claim in doc["continuations"]}
    runs: set[str] = set()
    # What a claim in a journal names as its source may be anything at all.
    while isinstance(run_id, str) and run_id not in runs:
        runs.add(run_id)
        run_id = sources.get(run_id)
    return runs


def _goes_on(doc: Doc, newest_run: str | None, words: Words, lost: bool) -> list[Step]:
    """From the newest run, if there is a reason to; where that is claimed, from the run that came of it."""
    runs = {run["run_id"]: run for run in doc["runs"]}
    if newest_run is None or doc["settings"].get("archived") is True:
        return []
    stopped, last = _stopped(doc, runs.get(newest_run)), _came_of(doc, newest_run)
    if stopped is None or (last in runs and runs[last]["status"] == "completed"):
        return []
    if lost:
        return [_message(stopped, "and lines of the journal are lost, so no run goes on from there")]
    if _unreadable(doc, last):
        return [_message(stopped, "and the header of its run is lost, so none goes on from there")]
    if last not in runs:
        return [_message(stopped, "and the run that was to go on from there never began")]
    stopped = _stopped(doc, runs[last])
    if stopped is None:
        return []
    command = words.resume + ("" if last == newest_run else f" --run {quote(last)}")
    return [{"command": command, "why": f"{_how(stopped)}; this goes on from there{_WITH.get(stopped['status'], '')}"}]


def _stopped(doc: Doc, run: Doc | None) -> Doc | None:
    """The run's turn, where there is a reason to go on from it."""
    if run is None or run["status"] not in _RESUMED:
        return None
    turn = next((turn for turn in doc["turns"] if turn["turn_id"] == run["turn_id"]), None)
    return turn if turn is not None and turn["status"] in _ENDED else None


def _came_of(doc: Doc, run_id: str) -> str:
    """The last run that claims lead to from this one; itself where none does."""
    claimed: list[Doc] = list(doc["continuations"])
    while (claim := next((claim for claim in claimed if claim["source"]["run_id"] == run_id), None)) is not None:
        claimed.remove(claim)
        run_id = claim["target"]["run_id"]
    return run_id


def _how(turn: Doc) -> str:
    return f"turn {turn['turn']} {_ENDED[turn['status']]}"


def _message(turn: Doc, more: str) -> Step:
    return {"command": None, "why": f"{_how(turn)}, {more}: {_MESSAGE}"}
