"""What of a journal is the work of a writer that lives: not cut off, but under way. No I/O.

A view shows every open turn with the end that a repair would write. As long as its writer lives that is not how it
stands; programs find under ``live`` how it does, and people are shown it in place of that end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Doc = Mapping[str, Any]

#: Verdicts that a writer that lives gives a journal while it works.
_AT_WORK: Final = ("interrupted", "torn")
#: How turns, runs and calls stand → what a person is told.
WORDS: Final = {
    "admitted": "about to begin",
    "running": "runs",
    "waiting_for_user": "waits for an answer",
    "not_begun": "not begun yet",
}
#: The tool whose call waits as long as its question does.
ASKING: Final = "ask_user"
#: States of a result that a repair writes.
_OPEN: Final = {"unknown": "running", "not_started": "not_begun"}


def live(pending: Iterable[Doc], asked: Sequence[Doc], turns: Iterable[Doc]) -> dict[str, Any]:
    """``{turns: [{turn_id, status, calls: [{call_id, state}]}], asked: [row]}`` of turns that a living writer has open.

    ``pending``: what a repair would write; ``asked``: the interactions that wait for an outcome, with their requests.
    ``status`` is ``admitted``, ``running`` or ``waiting_for_user``; a call's ``state`` is ``running``,
    ``waiting_for_user`` or ``not_begun``.
    """
    events = list(pending)
    names = {(turn["turn_id"], call["call_id"]): call["name"] for turn in turns for call in turn["calls"]}
    opened = {event["data"]["turn_id"] for event in events if event["type"] == "turn/start"}
    waiting = {row["turn_id"] for row in asked}
    questions = {row["turn_id"] for row in asked if row["kind"] == "question"}
    permissions = {(row["turn_id"], row["request"].get("call_id")) for row in asked}
    out = []
    for event in events:
        if event["type"] != "turn/end":
            continue
        turn_id = event["data"]["turn_id"]
        calls = []
        for result in events:
            data = result["data"]
            if result["type"] != "tool/result" or data["turn_id"] != turn_id or data["state"] not in _OPEN:
                continue
            call = (turn_id, data["call_id"])
            asks = call in permissions or (turn_id in questions and names.get(call) == ASKING)
            calls.append({"call_id": data["call_id"], "state": "waiting_for_user" if asks else _OPEN[data["state"]]})
        status = "admitted" if turn_id in opened else "waiting_for_user" if turn_id in waiting else "running"
        out.append({"turn_id": turn_id, "status": status, "calls": calls})
    return {"turns": out, "asked": list(asked)}


def inspection(doc: Doc) -> Doc:
    """The document of `inspect` as people are shown it: its open work as it stands, and no end that it has not had."""
    under = doc.get("live")
    if not isinstance(under, Mapping) or doc.get("verdict") not in _AT_WORK:
        return doc
    turns = {turn["turn_id"]: turn for turn in under["turns"]}
    last = doc["head"]["seq"]
    shown = [_turn(turn, turns.get(turn["turn_id"]), last) for turn in doc["turns"]]
    newest = {turn["run_ids"][-1]: turn["status"] for turn in shown if turn["turn_id"] in turns and turn["run_ids"]}
    return {
        **doc,
        "verdict": "in use",
        "findings": [finding for finding in doc["findings"] if finding["severity"] != "repairable"],
        "turns": shown,
        "runs": [
            {**run, "status": newest[run["run_id"]], "failure_class": None} if run["run_id"] in newest else run
            for run in doc["runs"]
        ],
        "executions": [
            {**row, "status": WORDS[turns[row["turn_id"]]["status"]]} if row["turn_id"] in turns else row
            for row in doc["executions"]
        ],
        "continuations": [
            {**claim, "state": "running"} if claim["target"]["run_id"] in newest else claim
            for claim in doc["continuations"]
        ],
        "pending": [],
    }


def _turn(turn: Doc, live: Doc | None, head: int) -> dict[str, Any]:
    """A row of `turns` as it stands."""
    if live is None:
        return dict(turn)
    states = {call["call_id"]: WORDS[call["state"]] for call in live["calls"]}
    calls = [
        {**call, "state": states[call["call_id"]]} if call["state"] in _OPEN and call["call_id"] in states else call
        for call in turn["calls"]
    ]
    seqs = {key: min(turn[key], head) for key in ("first_seq", "last_seq")}
    return {**turn, **seqs, "status": WORDS[live["status"]], "reason": None, "calls": calls}


def conversation(doc: Doc, live: Doc | None, head: int) -> dict[str, Any]:
    """The document of `show` as it stands. ``head``: the number of the newest event that is on disk."""
    if live is None or not live["turns"]:
        return dict(doc)
    turns = {turn["turn_id"]: turn for turn in live["turns"]}
    states = {(turn["turn_id"], call["call_id"]): call["state"] for turn in live["turns"] for call in turn["calls"]}
    entries = []
    for entry in doc["entries"]:
        blocks = entry["content"]
        call = (entry["turn_id"], blocks[0].get("call_id") if entry["role"] == "tool" and blocks else None)
        if call in states:
            said = {"kind": "tool_result", "call_id": call[1], "state": states[call], "content": []}
            if all(block.get("state") in _OPEN for block in blocks):
                entry = {"role": "tool", "seq": None, "turn_id": entry["turn_id"], "content": [said]}
        elif entry["seq"] > head and entry["turn_id"] in turns:
            if entry["role"] not in ("assistant", "user"):
                continue
            entry = {**entry, "mark": "under way"} if entry["role"] == "assistant" else {**entry, "seq": None}
        entries.append(entry)
    return {
        **doc,
        "entries": entries,
        "turns": [_turn(turn, turns.get(turn["turn_id"]), head) for turn in doc["turns"]],
        "asked": live["asked"],
    }
