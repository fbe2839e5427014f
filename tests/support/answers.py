"""Runs the command inside this process, and checks what must hold for every journal whatever it holds."""

import hashlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from maka.cli.app import run

from .legal import assert_legal

SEVERITIES = {
    **dict.fromkeys(
        "torn_tail open_turn open_step unknown_outcome not_started unsettled_run pending_interaction "
        "claim_repair_required admission_unfinished message_missing".split(),
        "repairable",
    ),
    **dict.fromkeys("claim_indeterminate handoff_stuck parent_missing parent_mismatch blob_missing".split(), "warning"),
    **dict.fromkeys(
        "admitted_without_run queued_messages pending_handoff active_plan extension_events quarantine".split(), "info"
    ),
    **dict.fromkeys(
        "damaged_line sum_mismatch seq_gap seq_conflict orphan_result duplicate_result turn_order handoff_invalid "
        "admission_mismatch missing_header".split(),
        "damage",
    ),
    **dict.fromkeys(
        "bom crlf blank_line duplicate_line lossy_text unanswered_call session_id_mismatch clock_skew accepted".split(),
        "notice",
    ),
    **dict.fromkeys("unsupported_format unsupported_event".split(), "unsupported"),
    **dict.fromkeys("empty unreadable".split(), "unreadable"),
}
VERDICTS = ["healthy", "interrupted", "torn", "damaged", "unsupported", "unreadable"]
INSPECT_EXIT = dict(zip(VERDICTS, (0, 1, 1, 4, 4, 4), strict=True))
TURN_KEYS = {"turn_id", "turn", "status", "reason", "run_ids", "first_seq", "last_seq", "steps", "calls"}
RUN_STATES = {
    "created",
    "running",
    "waiting_for_user",
    "completed",
    "cancelled",
    "failed",
    "handed_off",
}
INSPECT_KEYS = {
    *"session_id path format verdict events bytes head header settings writer live findings turns runs".split(),
    *"executions continuations handoffs interactions queue plans usage pending next".split(),
}
REPAIR_KEYS = {"session_id", "path", "dry_run", "verdict_before", "verdict_after", "set_aside", "appended"}
VERIFY_KEYS = {"session_id", "path", "verdict", "events", "head", "unverified", "findings"}


class _Stream(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", errors="surrogateescape", write_through=True)

    def taken(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


class Answer:
    """Exit code, standard output and standard error of one run."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """The one document, alone on its line."""
        assert self.out.endswith("\n"), self.out[:300]
        assert self.out.count("\n") == 1, self.out[:300]
        return json.loads(self.out)


def maka(*words: object) -> Answer:
    """`maka` with these words, in this process; no traceback, no defect, at most one sentence of error."""
    out, err = _Stream(), _Stream()
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = run([str(word) for word in words])
    finally:
        sys.stdout, sys.stderr = streams
    answer = Answer(code, out.taken(), err.taken())
    assert "Traceback" not in answer.out + answer.err
    assert "defect" not in answer.err, answer.err
    assert not re.search(r"\b(delete|remove) (it|the|this)\b|\brm\b", answer.err), answer.err
    return answer


def inspect(path: Path, *more: str) -> Any:
    """The document of `inspect`, with its exit code and shapes checked."""
    answer = maka("journal", "inspect", path, "--json", *more)
    doc = answer.json
    _shaped(doc)
    assert set(doc) == INSPECT_KEYS | ({"event_list"} if "--events" in more else set())
    assert answer.code == INSPECT_EXIT[doc["verdict"]]
    for turn in doc["turns"]:
        assert set(turn) == TURN_KEYS
        assert turn["status"] != "running"
        for call in turn["calls"]:
            known = {"call_id", "name", "state"}
            assert set(call) in (known, {*known, "outcome", "outcome_source"})
    for row in doc["runs"]:
        assert {"run_id", "turn_id", "invocation_id", "status"} <= set(row)
        assert set(row) <= {"run_id", "turn_id", "invocation_id", "status", "failure_class"}
        assert row["status"] in RUN_STATES
        assert ("failure_class" in row) <= (row["status"] == "failed")
    for row in doc["continuations"]:
        assert set(row) == {*("claim_id", "purpose", "state", "source", "target", "root_run_id", "depth", "advice")}
        assert row["depth"] >= 1
        assert row["advice"]
        assert set(row["source"]) == set(row["target"]) == {"run_id", "turn_id"}
        assert row["state"] in {"reserved", "repair_required", "started_indeterminate", "settled"}
    for row in doc["handoffs"]:
        assert set(row) == {
            *("handoff_id", "run_id", "turn_id", "successor_run_id", "claim_id", "remaining_steps", "state")
        }
        assert row["state"] in {"pending", "claimed", "continued", "abandoned"}
    turns = {turn["turn_id"]: turn for turn in doc["turns"]}
    for row in doc["executions"]:
        assert set(row) == {"turn_id", "root_run_id", "root", "chain", "tip", "status", "pending_handoff"}
        turn = turns[row["turn_id"]]
        assert (row["chain"], row["status"]) == (turn["run_ids"], turn["status"])
        assert (row["root_run_id"], row["tip"]) == (row["chain"][0], row["chain"][-1])
        assert len(row["chain"]) > 1 or row["pending_handoff"] is not None
    for row in doc["interactions"]:
        assert {"interaction_id", "kind", "status"} <= set(row) <= {"interaction_id", "kind", "status", "outcome"}
        assert row["status"] in {"pending", "answered", "closed"}
    assert set(doc["queue"]) == {"steering", "followup"}
    for row in [*doc["queue"]["steering"], *doc["queue"]["followup"]]:
        assert {"message_id", "seq"} <= set(row) <= {"message_id", "turn_id", "seq"}
    for row in doc["plans"]:
        assert set(row) == {"proposal_id", "revision", "title", "status", "execution", "turn_id", "steps"}
        assert row["status"] in {"proposed", "approved"}
    assert set(doc["usage"]) == {
        *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
    }
    for step in doc["next"]:
        assert set(step) == {"command", "why"}
        # Where only a program can do it there is no command.
        assert step["command"] is None or step["command"].startswith(("maka session ", "maka host "))
        assert step["why"]
    for event in doc["pending"]:
        assert set(event) == {"seq", "type", "data"}
    return doc


def _shaped(doc: Any) -> None:
    """Findings with the severities of the format's table, and the verdict that they amount to."""
    worst = 0
    for finding in doc["findings"]:
        code, severity = finding["code"], finding["severity"]
        late = code == "message_missing" and severity == "notice"
        assert late or severity == SEVERITIES[code], finding
        assert all((finding["message"], finding["remedy"])), finding
        assert set(finding) <= {"code", "severity", "seq", "offset", "length", "message", "remedy", "was", "count"}
        if severity == "damage":
            assert isinstance(finding.get("offset"), int), finding
        verdict = {"repairable": 1, "damage": 3, "unsupported": 4, "unreadable": 5}.get(severity, 0)
        if code == "torn_tail" and finding["length"]:
            verdict = 2
        worst = max(worst, verdict)
    assert doc["verdict"] == VERDICTS[worst], (doc["verdict"], doc["findings"])


def codes(doc: Any) -> list[str]:
    return [finding["code"] for finding in doc["findings"]]


def finding(doc: Any, code: str) -> Any:
    """The only finding of that code."""
    found = [finding for finding in doc["findings"] if finding["code"] == code]
    assert len(found) == 1, codes(doc)
    return found[0]


def repair(path: Path, *flags: str, code: int = 0) -> Any:
    answer = maka("journal", "repair", path, "--json", *flags)
    assert answer.code == code, (answer.code, answer.err)
    doc = answer.json
    assert set(doc) == REPAIR_KEYS
    assert doc["dry_run"] is ("--dry-run" in flags)
    for event in doc["appended"]:
        assert set(event) == {"seq", "type", "data"}
    for copy in doc["set_aside"]:
        assert set(copy) == {"offset", "length", "file"}
    return doc


def verify(path: Path, *more: str) -> tuple[int, Any]:
    answer = maka("journal", "verify", path, "--json", *more)
    doc = answer.json
    assert set(doc) >= VERIFY_KEYS, set(doc)
    return answer.code, doc


def messages(path: Path, code: int = 0) -> Any:
    """The provider history; it is legal."""
    answer = maka("journal", "show", path, "--json")
    assert answer.code == code, answer.err
    assert set(answer.json) == {"messages"}
    found = answer.json["messages"]
    assert_legal(found)
    return found


def texts(found: Any) -> list[str]:
    """All texts of a provider history, those in results too."""
    out = []
    for message in found:
        for block in message["content"]:
            for inner in [block, *(block["content"] if block.get("kind") == "tool_result" else [])]:
                if isinstance(inner.get("text"), str):
                    out.append(inner["text"])
    return out


def shown(path: Path) -> list[tuple[str, str]]:
    """The provider history as role and a word for each block: its text, call or result."""
    out = []
    for message in messages(path):
        for block in message["content"]:
            word = block.get("text") or f"{block['call_id']}:{block.get('state', 'call')}"
            out.append((message["role"], word))
    return out


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def types(doc: Any) -> list[str]:
    return [event["type"] for event in doc["appended"]]


class Repaired:
    """What a repair did: its document, the file before and after, the events of the whole batch."""

    def __init__(self, path: Path, doc: Any, before: bytes, inspected: Any) -> None:
        self.path, self.doc, self.before, self.inspected = path, doc, before, inspected
        self.after = path.read_bytes()
        self.types = types(doc)
        self.data = [event["data"] for event in doc["appended"]]
        self.kept = len(before)

    @property
    def again(self) -> Any:
        return inspect(self.path)


def settled(path: Path, *flags: str) -> Repaired:
    """Repair, with everything that must hold for every repair: dry run first, which tells exactly what is done and
    creates nothing; every byte kept here or beside; the batch sealed and chained; healthy; a second repair nothing;
    the writer opens it; the history legal before and after.
    """
    directory = path.parent
    before, files = path.read_bytes(), tree(directory)
    inspected = inspect(path)
    assert tree(directory) == files, "inspect wrote"
    messages(path)
    plan = repair(path, "--dry-run", *flags, code=1)
    assert tree(directory) == files, "the dry run wrote"
    done = repair(path, *flags)
    for key in ("set_aside", "appended", "verdict_before", "verdict_after", "session_id", "path"):
        assert plan[key] == done[key], key
    assert done["verdict_before"] == inspected["verdict"]
    assert done["verdict_after"] == "healthy"
    if "--salvage" not in flags:
        assert inspected["pending"] == done["appended"]
    result = Repaired(path, done, before, inspected)
    result.kept = _bytes_kept(path, before, result.after, done, inspected)
    _sealed(result)
    state = inspect(path)
    assert state["verdict"] == "healthy", codes(state)
    assert state["pending"] == []
    for key in ("turns", "runs", "plans", "usage"):
        if "--salvage" not in flags:
            assert state[key] == inspected[key], key
    again = repair(path, *flags)
    assert (again["appended"], again["set_aside"]) == ([], [])
    assert path.read_bytes() == result.after, "a second repair changed something"
    assert repair(path, "--dry-run")["appended"] == []
    code, _ = verify(path)
    assert code == 0
    messages(path)
    _opens(path)
    assert path.read_bytes() == result.after, "opening for writing changed something"
    return result


def _opens(path: Path) -> None:
    import maka as library

    with library.open_session(path):
        pass


def _bytes_kept(path: Path, before: bytes, after: bytes, done: Any, inspected: Any) -> int:
    """Every byte of the file before stands in the file or, where it was cut, in its copy. How long what stayed is."""
    kept = len(before)
    for finding in inspected["findings"]:
        if finding["code"] == "torn_tail" and finding["length"]:
            kept = finding["offset"]
            assert [kept, len(before) - kept] in [[copy["offset"], copy["length"]] for copy in done["set_aside"]]
    for copy in done["set_aside"]:
        raw = (path.parent / copy["file"]).read_bytes()
        offset, length = copy["offset"], copy["length"]
        assert raw == before[offset : offset + length]
        digest = hashlib.sha256(raw).hexdigest()
        assert copy["file"] == f"damage/{offset}-{digest[:16]}.bin"
        assert (path.parent / copy["file"]).stat().st_mode & 0o777 == 0o600
    assert after.startswith(before[:kept])
    return kept


def _sealed(repaired: Repaired) -> None:
    """What was appended is one atomic batch in the format's bytes, its sums chained to the last line that stands."""
    after, kept = repaired.after, repaired.kept
    assert after.endswith(b"\n")
    batch = after[kept:].removeprefix(b"\n").splitlines()
    assert len(batch) == len(repaired.doc["appended"])
    sums = [match.group(1).decode() for match in re.finditer(rb',"sum":"([0-9a-f]{32})"\}', after[:kept])]
    stamps = {int(stamp) for stamp in re.findall(rb'\{"seq":\d+,"ts":(-?\d+),', after[:kept])}
    prev: str | None = None
    for left, (line, event) in enumerate(zip(batch, repaired.doc["appended"], strict=True), 1):
        parsed = json.loads(line)
        keys = ["seq", "ts", "type", "data", *(["more"] if left < len(batch) else []), "sum"]
        assert list(parsed) == keys
        assert (parsed["seq"], parsed["type"], parsed["data"]) == (event["seq"], event["type"], event["data"])
        assert parsed.get("more", 0) == len(batch) - left
        assert parsed["ts"] in stamps
        if prev is None:
            wanted = [s for s in reversed(sums) if _sum(s, line) == parsed["sum"]]
            assert wanted, "the batch hangs on no line"
        else:
            assert _sum(prev, line) == parsed["sum"]
        prev = parsed["sum"]


def _sum(prev: str, line: bytes) -> str:
    return hashlib.sha256(prev.encode() + line[:-42]).hexdigest()[:32]


def untouched(path: Path) -> Any:
    """A journal that needs nothing: healthy, and a repair leaves every byte."""
    before = path.read_bytes()
    doc = inspect(path)
    assert doc["verdict"] == "healthy", codes(doc)
    assert doc["pending"] == []
    assert repair(path, "--dry-run")["appended"] == []
    done = repair(path)
    assert (done["appended"], done["set_aside"]) == ([], [])
    assert path.read_bytes() == before
    messages(path)
    _opens(path)
    assert path.read_bytes() == before
    return doc


def refused(path: Path, verdict: str, *flags: str) -> Any:
    """A journal that repair will not touch: nothing is created, the document is printed with empty lists."""
    before = tree(path.parent)
    doc = inspect(path)
    assert doc["verdict"] == verdict, codes(doc)
    answer = maka("journal", "repair", path, "--json", *flags)
    assert answer.code == 4, answer.err
    assert set(answer.json) == REPAIR_KEYS
    assert (answer.json["appended"], answer.json["set_aside"]) == ([], [])
    assert answer.err.count("\n") == 1
    after = tree(path.parent)
    after.pop("journal.lock", None)
    before.pop("journal.lock", None)
    assert after == before, "a refused repair wrote"
    return doc
