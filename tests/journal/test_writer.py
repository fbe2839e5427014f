import gc
import os
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal import files
from maka.journal.errors import (
    InvalidEvent,
    JournalConflict,
    JournalDamaged,
    JournalError,
    JournalLocked,
    JournalUnsupported,
    JournalWriteError,
    SessionNotFound,
)
from maka.journal.events import Draft, SessionNote
from maka.journal.files import RealFs
from maka.journal.lock import SessionLock
from maka.journal.reader import read
from maka.journal.scan import Mark
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from support import chain
from support.builder import Builder
from support.disks import FaultyDisk
from support.drafts import begin, end, header, note, rename, whole_turn


class Clock:
    """A wall clock that steps as it is told."""

    def __init__(self, *times: int) -> None:
        self.times = list(times)

    def __call__(self) -> int:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "sessions" / "s1"
    place.mkdir(parents=True)
    for directory in (tmp_path, place.parent, place):
        directory.chmod(0o700)
    return place / "journal.jsonl"


def create(path: Path, *batch: Draft, **options: Any) -> JournalWriter:
    return JournalWriter.create(path, header(), batch, **options)


# ---------------------------------------------------------------- creating


def test_a_new_journal_has_its_header_and_first_batch_and_is_private(path: Path) -> None:
    before = os.umask(0)
    try:
        with create(path, *begin(), clock=Clock(1_000)) as writer:
            raw = path.read_bytes()
            assert writer.head == Mark(len(raw), 2, chain.check(raw)[-1]["sum"])
            assert writer.next_seq == 3
    finally:
        os.umask(before)
    events = chain.check(raw)
    assert [event["type"] for event in events] == ["session/header", "turn/start", "user/message"]
    assert [event.get("more") for event in events] == [None, 1, None]
    assert {event["ts"] for event in events} == {1_000}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_nlink == 1
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["journal.jsonl", "journal.lock", "snapshot.json"]
    assert all(stat.S_IMODE(entry.stat().st_mode) == 0o600 for entry in path.parent.iterdir())


def test_creating_is_synced_before_the_name_and_the_directory_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    disk = FaultyDisk()
    disk.trace = steps
    real_link, real_fsync, real_unlink = os.link, os.fsync, Path.unlink

    def link(old: Path, new: Path) -> None:
        steps.append("link")
        real_link(old, new)

    def unlink(self: Path, missing_ok: bool = False) -> None:
        steps.append("unlink")
        real_unlink(self, missing_ok)

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            steps.append("directory")
        real_fsync(fd)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "unlink", unlink)
    create(path, fs=disk).close()
    assert steps[:5] == ["write", "sync", "link", "directory", "unlink"]


def test_an_existing_journal_is_never_overwritten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(path, note("first")).close()
    raw = path.read_bytes()
    with pytest.raises(JournalConflict, match="already a journal"):
        create(path)
    # Also where the name appears only after the look.
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with pytest.raises(JournalConflict, match="already a journal"):
        create(path)
    assert path.read_bytes() == raw
    assert not [entry for entry in path.parent.iterdir() if entry.name.endswith(".tmp")]
    SessionLock.acquire(path.parent).release()


def test_what_fails_while_creating_leaves_nothing(path: Path) -> None:
    for what in ("write", "sync"):
        disk = FaultyDisk()
        disk.fail(what, 28)
        with pytest.raises(JournalWriteError) as failed:
            create(path, fs=disk)
        assert failed.value.errno == 28
    disk = FaultyDisk()
    disk.take(10)
    with pytest.raises(JournalWriteError):
        create(path, fs=disk)
    with pytest.raises(InvalidEvent):
        create(path, note(), *end())
    with pytest.raises(InvalidEvent, match="begins with session/header"):
        JournalWriter.create(path, note())
    assert [entry.name for entry in path.parent.iterdir()] == ["journal.lock"]
    create(path).close()


def test_a_journal_whose_name_is_not_durable_was_not_created(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_dir(place: Path) -> None:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_dir", sync_dir)
        with pytest.raises(JournalWriteError, match="cannot create"):
            create(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["journal.lock"]
    with create(path, note("now it is there")) as writer:
        assert writer.next_seq == 2


def test_temporaries_of_dead_writers_are_swept_and_nothing_else(path: Path) -> None:
    create(path).close()
    stale = [path.parent / ".journal.jsonl.0123456789abcdef.tmp", path.parent / ".snapshot.json.00112233445566aa.tmp"]
    (path.parent / "blobs").mkdir(mode=0o700)
    stale.append(path.parent / "blobs" / ".blob.0123456789abcdef.tmp")
    others = [path.parent / name for name in (".hidden.tmp", "x.0123456789abcdef.tmp", ".journal.jsonl.xyz.tmp", "a")]
    for place in stale + others:
        place.touch()
    with SessionLock.acquire(path.parent):
        with pytest.raises(JournalLocked):
            JournalWriter.open(path)
        assert all(place.exists() for place in stale)
    JournalWriter.open(path).close()
    assert not any(place.exists() for place in stale)
    assert all(place.exists() for place in others)


def test_a_fork_begins_where_no_turn_is_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for name in ("sessions", "sessions/s1", "sessions/f1"):
        (tmp_path / name).mkdir(mode=0o700)
    with create(tmp_path / "sessions" / "s1" / "journal.jsonl", *begin()) as parent:
        head = parent.head
    point = {"session_id": "s1", "seq": head.seq, "sum": head.sum}
    with pytest.raises(InvalidEvent, match="inside a turn"):
        JournalWriter.create(tmp_path / "sessions" / "f1" / "journal.jsonl", header("f1", parent=point))


def test_a_fork_chains_on_from_its_parent_and_starts_from_its_fold(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "sessions").mkdir(mode=0o700)
    for name in ("s1", "f1", "f2"):
        (tmp_path / "sessions" / name).mkdir(mode=0o700)
    place = tmp_path / "sessions"
    with create(place / "s1" / "journal.jsonl", *whole_turn()) as parent:
        sum_ = parent.head.sum
        point = {"session_id": "s1", "seq": parent.head.seq, "sum": sum_}
    with JournalWriter.create(place / "f1" / "journal.jsonl", header("f1", parent=point)) as fork:
        with pytest.raises(InvalidEvent):
            fork.append_batch(begin(1))
        fork.append_batch(begin(2))
        fork.flush()
    chain.check((place / "f1" / "journal.jsonl").read_bytes(), sum_)
    with JournalWriter.open(place / "f1" / "journal.jsonl") as fork:
        assert fork.next_seq == 3
    with pytest.raises(InvalidEvent, match="forked"):
        JournalWriter.create(place / "f2" / "journal.jsonl", header("f2", parent=point | {"sum": "0" * 32}))


# ---------------------------------------------------------------- opening


def test_an_opened_journal_is_synced_before_it_is_trusted(path: Path) -> None:
    path.write_bytes(Builder().plain_turn().raw())
    disk = FaultyDisk()
    with JournalWriter.open(path, fs=disk) as writer:
        assert disk.trace == ["sync"]
        assert writer.next_seq == 9
        assert writer.head == read(path).scan.head
    disk = FaultyDisk()
    disk.fail("sync")
    with pytest.raises(JournalWriteError):
        JournalWriter.open(path, fs=disk)
    SessionLock.acquire(path.parent).release()


def test_opening_writes_nothing_to_the_journal(path: Path) -> None:
    raw = Builder().plain_turn().start().step().raw()
    path.write_bytes(raw)
    JournalWriter.open(path).close()
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (lambda raw: raw + b'{"seq":8,"ts":1', JournalError),
        (lambda raw: raw[:-1], JournalError),
        (lambda raw: raw.replace(b"fake-model", b"fakE-model", 1), JournalDamaged),
        (lambda raw: raw + b"nonsense\n", JournalDamaged),
        (lambda raw: b"", JournalError),
        (lambda raw: Builder(format=2).raw(), JournalUnsupported),
    ],
)
def test_what_is_not_in_order_is_refused_and_left_alone(path: Path, raw: Any, error: type[JournalError]) -> None:
    data = raw(Builder().plain_turn().raw())
    path.write_bytes(data)
    with pytest.raises(error) as refused:
        JournalWriter.open(path)
    assert type(refused.value) is error
    assert str(path) in str(refused.value)
    assert path.read_bytes() == data
    SessionLock.acquire(path.parent).release()


def test_a_folder_without_a_journal_is_no_session_and_gets_no_lock(path: Path) -> None:
    with pytest.raises(SessionNotFound):
        JournalWriter.open(path)
    assert list(path.parent.iterdir()) == []


def test_a_fold_of_other_bytes_is_refused(path: Path) -> None:
    path.write_bytes(Builder().plain_turn().raw())
    reading = read(path)
    assert reading.scan.head is not None
    with open(path, "ab") as file:
        file.write(b"x")
    with pytest.raises(JournalConflict, match="read it again"):
        JournalWriter.open(path, state=reading.state, head=reading.scan.head)


def test_a_lock_that_is_handed_over_is_released_at_close(path: Path) -> None:
    create(path).close()
    lock = SessionLock.acquire(path.parent)
    with JournalWriter.open(path, lock=lock):
        assert lock.held
    assert not lock.held


def test_two_writers_of_one_process_are_refused(path: Path) -> None:
    with create(path), pytest.raises(JournalLocked, match="this process"):
        JournalWriter.open(path)
    JournalWriter.open(path).close()


def test_a_place_that_cannot_be_written_to_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(path).close()
    real = os.open

    def refuse(name: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and os.fspath(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(JournalWriteError) as refused:
        JournalWriter.open(path)
    text = str(refused.value)
    assert str(path) in text
    assert f"uid {os.geteuid()}" in text
    assert "delete" not in text
    assert "remove" not in text


# ---------------------------------------------------------------- appending


def test_what_is_appended_can_be_read_back(path: Path) -> None:
    with create(path, clock=Clock(5, 4, 3)) as writer:
        first = writer.append(SessionNote(kind="x", text="a payload"))
        rest = writer.append_batch([note("é\u2028\x85"), rename("näme")])
        assert [event.seq for event in (first, *rest)] == [1, 2, 3]
        writer.flush()
        raw = path.read_bytes()
    events = chain.check(raw)
    assert [event["ts"] for event in events] == [5, 4, 3, 3], "time may step back"
    assert [event.get("more") for event in events] == [None, None, 1, None]
    assert events[1]["data"] == {"kind": "x", "text": "a payload"}
    assert "é\u2028\x85".encode() in raw
    assert [event.to_json() for event in read(path).events()] == [event.to_json() for event in (first, *rest)]
    for event in (first, *rest):
        assert raw[event.offset : event.offset + event.length + 1].endswith(event.sum.encode() + b'"}\n')


def test_nothing_is_written_before_the_barrier_and_all_of_it_in_one_write(path: Path) -> None:
    disk = FaultyDisk()
    with create(path, fs=disk) as writer:
        size = path.stat().st_size
        disk.trace.clear()
        for number in range(5):
            writer.append(note(str(number)))
        assert path.stat().st_size == size
        assert disk.trace == []
        writer.flush()
        assert disk.trace == ["stat", "write", "sync"]
        assert writer.head.seq == 5
        writer.flush()
        assert disk.trace == ["stat", "write", "sync"], "there was nothing to flush"
        writer.append_durable(note())
        assert disk.trace == ["stat", "write", "sync"] * 2


def test_previews_are_written_and_not_synced_until_the_barrier(path: Path) -> None:
    disk = FaultyDisk()
    with create(path, fs=disk) as writer:
        disk.trace.clear()
        head = writer.head
        writer.append(note("live"))
        writer.write_pending()
        writer.write_pending()
        assert disk.trace == ["stat", "write"]
        assert b"live" in path.read_bytes()
        assert writer.head == head, "it is not acknowledged"
        writer.append(note("more"))
        writer.flush()
        assert disk.trace == ["stat", "write", "stat", "write", "sync"]
        writer.append(note("again"))
        writer.write_pending()
        writer.flush()
        assert disk.trace[5:] == ["stat", "write", "stat", "sync"]
        assert writer.head.seq == 3
    chain.check(path.read_bytes())


def test_the_fold_includes_what_is_enqueued(path: Path) -> None:
    with create(path) as writer:
        writer.append_batch(begin(1))
        with pytest.raises(InvalidEvent):
            writer.append_batch(begin(1))
        with pytest.raises(InvalidEvent):
            writer.append(Draft("step/start", {"turn_id": "t1", "run_id": "r1", "step": 2}))
        assert (writer.next_seq, writer.durable_seq) == (3, 0)
        writer.flush()
        writer.append(Draft("step/start", {"turn_id": "t1", "run_id": "r1", "step": 1}))
        assert (writer.next_seq, writer.durable_seq) == (4, 2)
    assert [event["type"] for event in chain.check(path.read_bytes())][1:] == [
        "turn/start",
        "user/message",
        "step/start",
    ]


def test_a_batch_stands_or_falls_together(path: Path) -> None:
    """Its first events were folded when its last is refused; they must not stay in the fold."""
    with create(path, *whole_turn(1)) as writer:
        writer.append(note("enqueued before"))
        with pytest.raises(InvalidEvent):
            writer.append_batch([*begin(2), *begin(2)])
        with pytest.raises(InvalidEvent):
            writer.append_batch([*begin(2), Draft("session/note", {"kind": "x", "text": float("nan")})])
        next_seq = writer.next_seq
        events = writer.append_batch(begin(2))
        assert events[0].seq == next_seq
        writer.flush()
    chain.check(path.read_bytes())
    assert read(path).scan.findings == []


def test_expected_seq_is_the_number_that_the_event_must_get(path: Path) -> None:
    with create(path) as writer:
        assert writer.append(note(), expected_seq=1).seq == 1
        for wrong in (0, 1, 3):
            with pytest.raises(JournalConflict, match="gets number 2") as conflict:
                writer.append(note(), expected_seq=wrong)
            assert conflict.value.seq == 2
        with pytest.raises(JournalConflict):
            writer.append_batch([note(), note()], expected_seq=1)
        assert [event.seq for event in writer.append_batch([note(), note()], expected_seq=2)] == [2, 3]


@pytest.mark.parametrize(
    ("draft", "word"),
    [
        (Draft("session/note", {"kind": "x", "n": float("nan")}), "data.n"),
        (Draft("session/note", {"kind": "x", "n": 2**64}), "data.n"),
        (Draft("session/note", {"text": "no kind"}), "kind"),
        (Draft("future/thing", {}), "future/thing"),
        (Draft("session/note", {"kind": "x", "text": "x" * (16 << 20)}), "blob"),
        (object(), "object"),
        (None, "NoneType"),
    ],
)
def test_what_could_not_be_read_back_is_refused(path: Path, draft: Any, word: str) -> None:
    with create(path) as writer:
        with pytest.raises(InvalidEvent) as refused:
            writer.append(draft)
        assert word in str(refused.value)
        writer.append_durable(note("the handle lives"))
    assert len(chain.check(path.read_bytes())) == 2


def test_text_that_is_not_unicode_is_marked(path: Path) -> None:
    content = [{"kind": "text", "text": "a\ud800b"}]
    with create(path, *begin(1)) as writer:
        message = {**begin(1)[1].data, "message_id": "m2", "content": content, "source": {"kind": "user"}}
        event = writer.append(Draft("user/message", message))
    assert event.data["content"] == [{"kind": "text", "text": "a\ufffdb", "lossy": True}]


def test_one_hook_sees_everything_before_it_is_checked_and_encoded(path: Path) -> None:
    seen: list[str] = []

    def redact(draft: Draft) -> Draft:
        seen.append(draft.type)
        text = draft.data.get("text")
        return Draft(draft.type, draft.data | {"text": text.replace("secret", "…")}) if text else draft

    with create(path, on_append=redact) as writer:
        event = writer.append(note("a secret thing"))
        writer.append_batch([note("secret"), SessionNote(kind="y", text="secret")])
        assert event.data["text"] == "a … thing"
    assert seen == ["session/header", *["session/note"] * 3]
    assert b"secret" not in path.read_bytes()


def test_a_hook_that_returns_no_event_is_refused(path: Path) -> None:
    create(path).close()
    with JournalWriter.open(path, on_append=lambda draft: None) as writer:
        with pytest.raises(InvalidEvent):
            writer.append(note())


def test_a_hook_may_refuse(path: Path) -> None:
    def refuse(draft: Draft) -> Draft:
        raise ValueError("no")

    create(path).close()
    with JournalWriter.open(path, on_append=refuse) as writer:
        with pytest.raises(ValueError, match="no"):
            writer.append(note())
        assert writer.next_seq == 1


# ---------------------------------------------------------------- closing


def test_close_flushes_and_frees_the_lock(path: Path) -> None:
    writer = create(path)
    writer.append(note())
    writer.close()
    writer.close()
    assert len(chain.check(path.read_bytes())) == 2
    assert not writer.lock.held
    for call in (lambda: writer.append(note()), writer.flush, lambda: writer.append_batch([note()])):
        with pytest.raises(JournalError, match="is closed"):
            call()
    JournalWriter.open(path).close()


def test_an_error_inside_the_block_is_not_hidden(path: Path) -> None:
    disk = FaultyDisk()
    writer = create(path, fs=disk)
    writer.append(note())
    disk.fail("write", times=9)
    with pytest.raises(RuntimeError, match="mine"), writer:
        raise RuntimeError("mine")
    assert not writer.lock.held


@given(st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=4), max_size=6), st.data())
def test_any_batches_and_barriers_chain(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[str]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("s") / "journal.jsonl"
    appended = []
    writer = create(path)
    for batch in batches:
        appended += writer.append_batch([note(text) for text in batch])
        match data.draw(st.sampled_from(["flush", "preview", "close", "nothing"])):
            case "flush":
                writer.flush()
            case "preview":
                writer.write_pending()
            case "close":
                writer.close()
                writer = JournalWriter.open(path)
    writer.close()
    events = chain.check(path.read_bytes())
    assert [event["data"]["text"] for event in events[1:]] == [text for batch in batches for text in batch]
    assert [event.get("more", 0) for event in events[1:]] == [len(b) - 1 - i for b in batches for i in range(len(b))]
    assert [event["sum"] for event in events[1:]] == [event.sum for event in appended]


def test_the_real_operations_are_the_systems() -> None:
    assert RealFs.write is os.write
    assert RealFs.truncate is os.ftruncate


def test_a_writer_that_is_let_go_gives_its_lock_up_and_says_so(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    held = [store.create(header())]

    def let_go() -> None:
        held.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="let go without being closed"):
        let_go()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = store.open("s1")
        again.close()
        del again
        gc.collect()
