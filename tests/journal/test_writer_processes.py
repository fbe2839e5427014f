"""Two processes and one journal."""

import json
import os
from pathlib import Path

import pytest

from maka.journal.errors import JournalConflict, JournalLocked
from maka.journal.reader import read
from maka.journal.writer import JournalWriter
from support import chain
from support.drafts import header, note
from support.processes import Child

WRITE = """
from maka.journal.writer import JournalWriter
from support.drafts import note
writer = JournalWriter.open(sys.argv[1])
print("open", flush=True)
for line in sys.stdin:
    event = writer.append_durable(note(line.strip()))
    print(event.seq, event.sum, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s1").mkdir(mode=0o700)
    path = tmp_path / "s1" / "journal.jsonl"
    JournalWriter.create(path, header()).close()
    return path


def test_a_second_writer_is_refused_and_the_first_goes_on(path: Path) -> None:
    with Child(WRITE, path) as child:
        assert child.line() == "open"
        with pytest.raises(JournalLocked, match=f"process {child.process.pid}"):
            JournalWriter.open(path)
        child.tell("still mine")
        assert child.line().startswith("1 ")
    assert chain.check(path.read_bytes())[-1]["data"]["text"] == "still mine"


def test_kill_9_frees_the_lock_and_loses_nothing_acknowledged(path: Path) -> None:
    acknowledged = []
    for life in range(3):
        with Child(WRITE, path) as child:
            assert child.line() == "open"
            for number in range(3):
                child.tell(f"{life}-{number}")
                acknowledged.append(child.line().split(" ")[1])
            child.kill()
    with JournalWriter.open(path) as writer:
        writer.append_durable(note("the survivor"))
    events = chain.check(path.read_bytes())
    assert [event["sum"] for event in events[1:-1]] == acknowledged


def test_the_text_of_a_dead_writers_lock_means_nothing(path: Path) -> None:
    lock = path.parent / "journal.lock"
    lock.write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": 1}))
    with JournalWriter.open(path) as writer:
        writer.append_durable(note())


def test_a_reader_beside_a_busy_writer_sees_whole_events(path: Path) -> None:
    with Child(WRITE, path) as child:
        assert child.line() == "open"
        for number in range(30):
            child.tell("x" * 2000)
            if number % 3 == 0:
                reading = read(path)
                assert [finding.code for finding in reading.scan.findings] in ([], ["torn_tail"])
                assert reading.scan.head is not None
        for _ in range(30):
            child.line()
    assert len(chain.check(path.read_bytes())) == 31


def test_who_writes_without_the_lock_is_noticed(path: Path) -> None:
    """A program that knows nothing of the lock appends to the file between two of this writer's writes."""
    with JournalWriter.open(path) as writer:
        writer.append_durable(note("mine"))
        with Child("open(sys.argv[1], 'ab').write(b'a stranger\\n'); print('done', flush=True)", path) as child:
            assert child.line() == "done"
        raw = path.read_bytes()
        writer.append(note("must not be written"))
        with pytest.raises(JournalConflict):
            writer.flush()
    assert path.read_bytes() == raw
