"""A busy writer is killed at random instants, again and again: what it acknowledged is there, and repairs to a whole.

``MAKA_KILLS`` says how often; ``MAKA_KILL_SEED`` repeats a storm's choices.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import maka
from support.chain import check
from support.legal import assert_legal

WRITER = Path(__file__).parents[2] / "fixtures" / "busy_writer.py"
KILLS = int(os.environ.get("MAKA_KILLS", "24"))
SEED = os.environ.get("MAKA_KILL_SEED", "1")
#: Kills that the same sessions go through before new ones take their place, so that journals stay short.
ROUND = 8


def kill_once(root: Path, seed: str, after: float, *, early: bool) -> dict[str, dict[int, str]]:
    """Lets a writer run, kills it ``after`` seconds from its first word, and returns what it acknowledged.

    ``early`` counts from its start: then it may still be opening and repairing.
    """
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(root), seed], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        try:
            said = b"" if early else child.stdout.readline()
            # What comes meanwhile waits in the pipe; the writer is too slow to fill it.
            time.sleep(after)
        finally:
            child.kill()
        said += child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    acknowledged: dict[str, dict[int, str]] = {}
    for line in said.decode().splitlines(keepends=True):
        if line.endswith("\n"):
            session, seq, sum_ = line.split()
            acknowledged.setdefault(session, {})[int(seq)] = sum_
    return acknowledged


@pytest.mark.timeout(120 + 5 * KILLS)
def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    known: dict[tuple[Path, str], dict[int, str]] = {}
    repaired = 0
    for number in range(KILLS):
        root = tmp_path / f"root{number // ROUND}"
        early = chance.random() < 0.2
        after = chance.random() * (0.5 if early else 0.25)
        for session, sums in kill_once(root, f"{SEED}/{number}", after, early=early).items():
            known.setdefault((root, session), {}).update(sums)
        # A part of them is repaired by the next writer, the others here.
        here = number % ROUND == ROUND - 1 or number == KILLS - 1 or chance.random() < 0.5
        for session in ("one", "two", "three"):
            path = root / "sessions" / session / "journal.jsonl"
            if not path.exists():
                assert (root, session) not in known
                continue
            assert_acknowledged(path.read_bytes(), known.get((root, session), {}))
            if here:
                repaired += assert_repairs(path)
                assert_acknowledged(path.read_bytes(), known.get((root, session), {}))
    assert known
    assert repaired


def assert_acknowledged(raw: bytes, sums: dict[int, str]) -> None:
    # The chain is checked up to the last LF; what stands behind it was never acknowledged.
    events = check(raw[: raw.rindex(b"\n") + 1])
    there = {event["seq"]: event["sum"] for event in events}
    assert len(there) == len(events)
    missing = {seq: sum_ for seq, sum_ in sums.items() if there.get(seq) != sum_}
    assert not missing


def assert_repairs(path: Path) -> bool:
    """Repair leads to legal history, and a second one changes nothing; whether there was anything to repair."""
    before = path.read_bytes()
    view = maka.load(path)
    after = path.read_bytes()
    assert view.verdict == "healthy"
    assert_legal(view.messages())
    events = check(after)
    ended = [event["data"]["turn_id"] for event in events if event["type"] == "turn/end"]
    begun = [event["data"]["turn_id"] for event in events if event["type"] == "turn/start"]
    assert ended == begun
    operations = [event["data"]["operation_id"] for event in events if event["type"] == "tool/call"]
    results = [data["operation_id"] for data in map(_data, events) if data.get("state") and data.get("operation_id")]
    assert sorted(operations) == sorted(results)
    assert maka.load(path).head == view.head
    assert path.read_bytes() == after
    return before != after


def _data(event: dict[str, dict[str, str]]) -> dict[str, str]:
    return event["data"]
