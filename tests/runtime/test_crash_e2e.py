"""A process is killed with SIGKILL at a named point; a fresh one loads what it left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import maka
from support.chain import check
from support.legal import assert_legal

CHILD = Path(__file__).parents[2] / "fixtures" / "crash_child.py"
SESSION = "semantic-checkpoint-crash"
MARKS = {"request": "request-dispatched", "tool": "tool-side-effect"}


class ChildEnded(Exception):
    """By itself and without an error, before it reached its point."""


def wait_for_marker(marker: Path, expected: str, child: "subprocess.Popen[bytes]") -> None:
    """Readiness is the marker's content: a proper beginning of it means not yet, anything else is an error."""
    deadline = time.monotonic() + 30
    while (found := marker.read_text()) != expected:
        assert expected.startswith(found), f"the child wrote {found!r}"
        if child.poll() is not None:
            assert child.stderr is not None
            assert (child.returncode, child.stderr.read()) == (0, b"")
            raise ChildEnded
        assert time.monotonic() < deadline, f"the child did not reach {expected!r}"
        time.sleep(0.01)


class Place:
    """A root with one session, the marker, and the file in which side effects leave a line."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.marker = directory / "marker"
        self.path = self.root / "sessions" / SESSION / "journal.jsonl"
        self._effects = directory / "effects"

    def crash(self, point: str) -> None:
        """Runs the child up to ``point`` and kills it there."""
        # Made before the child, so that it being there cannot be taken for readiness.
        self.marker.write_bytes(b"")
        child = subprocess.Popen(
            [sys.executable, str(CHILD), point, str(self.root), str(self.marker)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        with child:
            try:
                wait_for_marker(self.marker, MARKS.get(point, point), child)
            finally:
                child.kill()
        assert child.returncode == -signal.SIGKILL

    def load(self) -> maka.Session:
        return maka.load(SESSION, root=self.root)

    @property
    def effects(self) -> list[str]:
        return self._effects.read_text().splitlines() if self._effects.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def assert_whole(place: Place, session: maka.Session) -> None:
    """What holds after every crash."""
    raw = place.path.read_bytes()
    events = check(raw)
    assert session.verdict == "healthy"
    assert_legal(session.messages())
    types = [event["type"] for event in events]
    assert types.count("turn/start") == types.count("turn/end") <= 1
    assert types.count("step/start") == types.count("step/end")
    # A dispatch whose effect is there is never called not started, and the body ran once at most for each.
    assert len(place.effects) == len(set(place.effects))
    answered = {event["data"]["call_id"]: event["data"] for event in events if event["type"] == "tool/result"}
    assert len(answered) == types.count("tool/result")
    dispatched = {event["data"]["operation_id"]: event["data"] for event in events if event["type"] == "tool/call"}
    for operation in place.effects:
        assert answered[dispatched[operation]["call_id"]]["state"] in ("ok", "unknown")
    for result in answered.values():
        assert result.get("operation_id") in dispatched or result["state"] == "not_started"
    again = place.load()
    assert place.path.read_bytes() == raw
    assert again.head == session.head


# ---------------------------------------------------------------- the two first points


def test_the_complete_request_is_durable_before_the_model_is_asked(place: Place) -> None:
    place.crash("request")
    session = place.load()
    events = session.events
    assert [event.type for event in events] == [
        "turn/start",
        "user/message",
        "step/start",
        "request/header",
        "step/end",
        "turn/end",
    ]
    assert events[-1].payload.reason.kind == "interrupted"
    assert_whole(place, session)


def test_a_tools_intent_is_durable_before_its_effect_and_its_missing_result_is_unknown(place: Place) -> None:
    place.crash("tool")
    session = place.load()
    types = [event.type for event in session.events]
    assert "assistant/message" in types
    assert "tool/call" in types
    result = next(event for event in session.events if event.type == "tool/result")
    assert result.data["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    [block] = result.payload.content
    assert block["kind"] == "text"
    assert "Do not retry blindly." in block["text"]
    assert len(place.effects) == 1
    assert_whole(place, session)


# ---------------------------------------------------------------- every barrier


#: Barriers of the child's turn: the first request, the call, its result with the second request, the end.
BARRIERS = (1, 2, 3, 4)
#: After a barrier: what the only call came to, as the journal must know it then.
STATES = {1: None, 2: "unknown", 3: "ok", 4: "ok"}


@pytest.mark.parametrize("barrier", BARRIERS)
def test_before_a_barrier(place: Place, barrier: int) -> None:
    place.crash(f"before-barrier-{barrier}")
    assert_whole(place, place.load())
    assert len(place.effects) == (barrier > 2)


@pytest.mark.parametrize("barrier", BARRIERS)
def test_after_a_barrier(place: Place, barrier: int) -> None:
    place.crash(f"after-barrier-{barrier}")
    session = place.load()
    assert_whole(place, session)
    states = [event.data["state"] for event in session.events if event.type == "tool/result"]
    assert states == ([STATES[barrier]] if STATES[barrier] else [])
    [turn] = session.turns()
    assert turn["status"] == ("completed" if barrier == 4 else "interrupted")
    assert len(place.effects) == (barrier > 2)


# ---------------------------------------------------------------- in between


def test_of_two_parallel_tools_one_had_finished(place: Place) -> None:
    place.crash("one-of-two")
    session = place.load()
    assert_whole(place, session)
    [turn] = session.turns()
    assert [(call["name"], call["state"]) for call in turn["calls"]] == [("slow", "unknown"), ("quick", "ok")]
    assert len(place.effects) == 2


def test_while_text_streams(place: Place) -> None:
    place.crash("deltas")
    session = place.load()
    assert_whole(place, session)
    [said] = [event.data for event in session.events if event.type == "assistant/message"]
    assert said["interrupted"] is True
    [block] = said["content"]
    assert block["text"]
    assert "some live text".startswith(block["text"])


@pytest.mark.parametrize("torn", [b"", b'{"seq":99,"ts"'])
def test_inside_the_repair(place: Place, torn: bytes) -> None:
    place.crash("tool")
    with open(place.path, "ab") as file:
        file.write(torn)
    crashed = place.path.read_bytes()
    wanted: list[bytes] = []
    # Every file operation of the repair in turn; the child that meets none ends by itself.
    for operation in range(1, 30):
        place.path.write_bytes(crashed)
        shutil.rmtree(place.path.parent / "damage", ignore_errors=True)
        try:
            place.crash(f"repair-{operation}")
        except ChildEnded:
            break
        session = place.load()
        assert_whole(place, session)
        wanted.append(place.path.read_bytes())
    assert operation >= (11 if torn else 4)
    assert set(wanted) == {place.path.read_bytes()}
    if torn:
        [copy] = (place.path.parent / "damage").glob("*.bin")
        assert copy.read_bytes() == torn


READER = """
import json, sys, maka
seen = set()
while True:
    try:
        view = maka.inspect(sys.argv[1], root=sys.argv[2])
    except maka.SessionNotFound:
        continue
    view.messages()
    row = [view.verdict, [turn["status"] for turn in view.turns()]]
    if json.dumps(row) not in seen:
        seen.add(json.dumps(row))
        print(json.dumps(row), flush=True)
"""


def test_while_another_process_reads(place: Place) -> None:
    reader = subprocess.Popen([sys.executable, "-c", READER, SESSION, str(place.root)], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    try:
        place.crash("tool")
        session = place.load()
        rows = []
        while ["healthy", ["interrupted"]] not in rows:
            line = reader.stdout.readline()
            assert line, "the reader ended"
            rows.append(json.loads(line))
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    assert {verdict for verdict, _ in rows} <= {"healthy", "interrupted", "torn"}
    assert_whole(place, session)


def test_the_killed_holder_frees_the_lock_and_a_new_turn_goes_on(place: Place) -> None:
    place.crash("after-barrier-2")
    with maka.open_session(SESSION, root=place.root) as journal:
        assert os.path.exists(journal.path)
        note: dict[str, Any] = {"kind": "test"}
        journal.append_durable(maka.Draft("session/note", note))
    session = place.load()
    assert session.events[-1].type == "session/note"
    assert session.turns()[0]["status"] == "interrupted"
