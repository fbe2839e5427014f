"""What a store of files promises beyond the contract: places, modes, listing what is broken, the trash."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from maka.journal.errors import JournalConflict, JournalError, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.snapshot import peek
from maka.journal.store import FileStore, default_root
from maka.repair.session import inspect
from support.builder import Builder
from support.drafts import header, note, rename, whole_turn


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "state" / "maka")


def test_the_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MAKA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_root() == tmp_path / ".local" / "state" / "maka"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_root() == tmp_path / ".local" / "state" / "maka"
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_root() == Path("/x/maka")
    monkeypatch.setenv("MAKA_HOME", "")
    assert default_root() == Path("/x/maka")
    monkeypatch.setenv("MAKA_HOME", "/m")
    assert default_root() == Path("/m") == FileStore().root


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKA_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(SessionNotFound, match="set MAKA_HOME"):
        default_root()


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_everything_is_private_whatever_the_umask(store: FileStore, umask: int) -> None:
    before = os.umask(umask)
    try:
        store.create(header(), whole_turn()).close()
    finally:
        os.umask(before)
    for place, directories, names in os.walk(store.root.parent):
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
        assert all(stat.S_IMODE(os.stat(os.path.join(place, name)).st_mode) == 0o600 for name in names)
        assert directories or names


def test_each_new_directory_is_durable_in_its_parent(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    if not os.path.isdir("/proc/self/fd"):
        return
    monkeypatch.setattr(os, "fsync", fsync)
    store.create(header()).close()
    assert synced == [store.root.parent.parent.name, "state", "maka", "sessions", "s1"]


@pytest.mark.parametrize("which", ["", "sessions", "sessions/s1"])
def test_a_place_that_others_may_write_to_is_refused(store: FileStore, which: str) -> None:
    store.create(header()).close()
    (store.root / which).chmod(0o770)
    for call in (lambda: store.open("s1"), lambda: store.append("s1", [note()]), lambda: store.delete("s1")):
        with pytest.raises(JournalWriteError, match="may be written to by others"):
            call()
    if which != "sessions/s1":
        with pytest.raises(JournalWriteError, match="may be written to by others"):
            store.create(header("s2"))
        assert not (store.root / "sessions" / "s2").exists()
    assert len(list(store.read("s1"))) == 1, "reading works anywhere"
    assert len(store.list()) == 1


def test_an_empty_folder_is_no_session_and_can_become_one(store: FileStore) -> None:
    store.create(header("other")).close()
    (store.root / "sessions" / "s1").mkdir(mode=0o700)
    with pytest.raises(SessionNotFound):
        store.open("s1")
    assert [row["session_id"] for row in store.list()] == ["other"]
    store.create(header("s1")).close()
    assert len(store.list()) == 2


# ---------------------------------------------------------------- listing


def put(store: FileStore, name: str, raw: bytes) -> Path:
    place = store.root / "sessions" / name
    place.mkdir(parents=True)
    (place / "journal.jsonl").write_bytes(raw)
    return place / "journal.jsonl"


def row(store: FileStore, name: str = "s1") -> dict[str, Any]:
    return next(row for row in store.list() if row["session_id"] == name)


def test_a_fitting_snapshot_is_believed(store: FileStore) -> None:
    with FileStore(store.root, verdict=lambda state: "healthy").create(header(name="n"), whole_turn()) as writer:
        last = writer.append_durable(note()).ts
    expected = {"session_id": "s1", "name": "n", "last_activity": last, "turns": 1, "verdict": "healthy"}
    expected |= {"labels": [], "flagged": False, "archived": False, "unsettled": 0}
    expected |= {"active_plan": False, "pending_handoff": False, "queued": 0, "admitted": False}
    assert store.list() == [expected]


@pytest.mark.parametrize("change", ["grown", "shrunk", "other sum", "torn snapshot"])
def test_a_snapshot_that_does_not_fit_is_not_believed(store: FileStore, change: str) -> None:
    FileStore(store.root, verdict=lambda state: "healthy").create(header(), whole_turn()).close()
    path = store.path("s1")
    raw = path.read_bytes()
    match change:
        case "grown":
            path.write_bytes(raw + b"x")
        case "shrunk":
            path.write_bytes(raw[: raw.rindex(b"\n", 0, -1) + 1])
        case "other sum":
            path.write_bytes(raw[:-10] + (b"1" if raw[-10:-9] == b"0" else b"0") + raw[-9:])
        case "torn snapshot":
            place = path.parent / "snapshot.json"
            place.write_bytes(place.read_bytes()[:30])
    assert row(store)["verdict"] == "unchecked"


def test_without_a_snapshot_the_ends_of_the_file_tell(store: FileStore) -> None:
    builder = Builder(name="from the header").plain_turn().plain_turn()
    put(store, "s1", builder.raw())
    assert row(store) == {
        "session_id": "s1",
        "name": "from the header",
        "last_activity": builder.ts,
        "turns": 2,
        "verdict": "unchecked",
        "labels": [],
        "flagged": False,
        "archived": False,
        "unsettled": None,
        "active_plan": None,
        "pending_handoff": None,
        "queued": None,
        "admitted": None,
    }


def test_what_the_ends_cannot_tell_is_null(store: FileStore) -> None:
    builder = Builder(name="may have been changed in between").plain_turn()
    builder.add("session/note", {"kind": "x", "text": "y" * 70_000})
    put(store, "s1", builder.raw())
    assert row(store) == {
        "session_id": "s1",
        "name": None,
        "last_activity": None,
        "turns": None,
        "verdict": "unchecked",
        "labels": None,
        "flagged": None,
        "archived": None,
        "unsettled": None,
        "active_plan": None,
        "pending_handoff": None,
        "queued": None,
        "admitted": None,
    }
    builder.add("session/updated", {"patch": {"name": "seen at the end"}})
    builder.add("session/updated", {"patch": {"flagged": True}})
    builder.plain_turn()
    put(store, "s2", builder.raw())
    assert row(store, "s2") == {
        "session_id": "s2",
        "name": "seen at the end",
        "last_activity": builder.ts,
        "turns": 2,
        "verdict": "unchecked",
        "labels": None,
        "flagged": True,
        "archived": None,
        "unsettled": None,
        "active_plan": None,
        "pending_handoff": None,
        "queued": None,
        "admitted": None,
    }


PATCHES: list[tuple[dict[str, Any], list[dict[str, Any]], list[Any]]] = [
    ({}, [], [None, [], False, False]),
    ({"name": "n", "labels": ["a"]}, [], ["n", ["a"], False, False]),
    ({"labels": ["a"]}, [{"labels": []}, {"archived": True}], [None, [], False, True]),
    ({}, [{"archived": True, "flagged": True}, {"archived": False, "name": "new"}], ["new", [], True, False]),
    ({"name": "n"}, [{"name": None, "labels": 5, "flagged": "yes", "archived": 1}], [None, [], False, False]),
]


@pytest.mark.parametrize(("begun", "patches", "expected"), PATCHES)
def test_a_row_shows_the_newest_settings_from_the_bytes_and_from_a_snapshot(
    store: FileStore, begun: dict[str, Any], patches: list[dict[str, Any]], expected: list[Any]
) -> None:
    builder = Builder(**begun)
    for patch in patches:
        builder.add("session/updated", {"patch": patch})
    put(store, "s1", builder.raw())
    shown = ["name", "labels", "flagged", "archived"]
    assert [row(store)[key] for key in shown] == expected
    store.open("s1").close()
    found = peek(f"{store.directory('s1')}/snapshot.json")
    assert found is not None
    assert [found.row[key] for key in shown] == expected
    assert [row(store)[key] for key in shown] == expected


def test_labels_that_are_too_many_for_a_row_are_left_out_of_it(store: FileStore) -> None:
    store.create(header("s1", labels=["label"] * 10_000)).close()
    assert (row(store)["labels"], row(store)["archived"]) == (None, False)
    assert inspect(store.path("s1")).settings()["labels"] == ["label"] * 10_000


@pytest.mark.parametrize("root", ["", 5, b"root"])
def test_what_is_no_root_is_refused(root: Any) -> None:
    with pytest.raises(SessionNotFound, match=r"the root is .*; give the directory that sessions are kept in"):
        FileStore(root)


def test_words_inside_a_text_are_no_events(store: FileStore) -> None:
    builder = Builder(name="true").plain_turn()
    fake = '"type":"session/updated","data":{"patch":{"name":"false"}} "type":"turn/start","data":{"turn":99}'
    builder.start(fake)
    put(store, "s1", builder.raw())
    assert (row(store)["name"], row(store)["turns"]) == ("true", 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"\0" * 5000,
        b"nonsense\n" * 20_000,
        b'{"seq":0',
        Builder().plain_turn().raw()[:-20],
        Builder().plain_turn().raw()[20:],
        b"\xef\xbb\xbf" + Builder(name="n").raw(),
        Builder(session_id="another", name="n").plain_turn().raw(b"\r\n"),
        Builder(format=99).raw(),
        Builder().raw() + b"x" * 200_000,
        Builder(name=["not", "text"]).raw(),
    ],
)
def test_damaged_sessions_are_listed_and_never_block_the_others(store: FileStore, raw: bytes) -> None:
    store.create(header("good"), whole_turn()).close()
    put(store, "bad", raw)
    rows = store.list()
    assert [row["session_id"] for row in rows] == ["bad", "good"]
    assert rows[0]["verdict"] == ("unchecked" if raw else "unreadable")
    assert rows[0]["name"] in (None, "n")
    assert set(rows[0]) == set(rows[1])


def test_what_cannot_be_read_is_listed(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("denied", "fifo", "broken", "good"):
        store.create(header(name)).close()
    store.path("fifo").unlink()
    os.mkfifo(store.path("fifo"))
    real_open, real_pread = os.open, os.pread
    denied = str(store.path("denied"))
    broken: list[int] = []

    def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path) == denied:
            raise PermissionError(13, "Permission denied")
        fd = real_open(path, flags, *rest, **more)
        broken[:] = [fd] if str(path) == str(store.path("broken")) else [other for other in broken if other != fd]
        return fd

    def pread(fd: int, *rest: Any) -> bytes:
        if fd in broken:
            raise OSError(5, "Input/output error")
        return real_pread(fd, *rest)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pread", pread)
    verdicts = {row["session_id"]: row["verdict"] for row in store.list()}
    assert verdicts == {"denied": "unreadable", "fifo": "unreadable", "broken": "unreadable", "good": "unchecked"}


def test_other_names_in_the_folder_are_no_sessions(store: FileStore) -> None:
    store.create(header()).close()
    for name in (".hidden", "-x", "with space"):
        (store.root / "sessions" / name).mkdir()
        (store.root / "sessions" / name / "journal.jsonl").write_bytes(Builder().raw())
    (store.root / "sessions" / "a-file").touch()
    assert [row["session_id"] for row in store.list()] == ["s1"]


def test_a_root_that_is_not_there_has_no_sessions(store: FileStore) -> None:
    assert store.list() == []
    assert not store.root.exists()


def test_listing_beside_a_writer(store: FileStore) -> None:
    with store.create(header(), [rename("live")]) as writer:
        assert row(store)["name"] == "live"
        writer.append(note())
        writer.write_pending()
        assert row(store)["name"] == "live"


# ---------------------------------------------------------------- deleting


def test_delete_moves_to_the_trash(store: FileStore) -> None:
    store.create(header(), [note("kept")]).close()
    raw = store.path("s1").read_bytes()
    place = store.delete("s1")
    assert place == store.root / "trash" / "s1"
    assert (place / "journal.jsonl").read_bytes() == raw
    assert store.list() == []
    with pytest.raises(SessionNotFound):
        store.delete("s1")
    store.create(header()).close()
    assert store.trashed("s1") == place
    assert store.delete("s1") == store.trashed("s1") == store.root / "trash" / "s1.2"
    assert store.trashed("s2") is None
    assert (place / "journal.jsonl").read_bytes() == raw
    assert stat.S_IMODE((store.root / "trash").stat().st_mode) == 0o700


def test_delete_needs_the_lock(store: FileStore) -> None:
    with store.create(header()) as writer:
        with pytest.raises(JournalLocked):
            store.delete("s1")
        writer.append_durable(note())
    store.delete("s1")


def test_a_parent_stays_while_a_fork_refers_to_it(store: FileStore) -> None:
    with store.create(header(), whole_turn()) as writer:
        point = {"session_id": "s1", "seq": writer.head.seq, "sum": writer.head.sum}
    store.create(header("f1", parent=point)).close()
    put(store, "bad", b"nonsense\n")
    with pytest.raises(JournalConflict, match="parent of the session f1"):
        store.delete("s1")
    assert store.path("s1").exists()
    store.delete("f1")
    store.delete("s1")


def test_no_session_id_ever_leaves_the_root(store: FileStore) -> None:
    (store.root.parent / "victim").mkdir(parents=True)
    for name in ("../../victim", "..", "a/../../victim"):
        with pytest.raises(SessionNotFound):
            store.delete(name)
        with pytest.raises(SessionNotFound):
            store.path(name)
    assert (store.root.parent / "victim").exists()


def test_an_unreadable_root_is_told(store: FileStore) -> None:
    store.create(header()).close()
    (store.root / "sessions").rename(store.root / "elsewhere")
    (store.root / "sessions").symlink_to(store.root / "sessions")
    with pytest.raises(JournalError, match="cannot list"):
        store.list()


def test_ids_are_names_alone_and_need_no_journal(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert store.ids() == []
    for session_id in ("b", "a"):
        store.create(header(session_id)).close()
    (tmp_path / "sessions" / "empty").mkdir()
    (tmp_path / "sessions" / ".hidden").mkdir()
    assert store.ids() == ["a", "b", "empty"]
    assert [row["session_id"] for row in store.list()] == ["a", "b"]
    assert store.row("empty") is None
