"""What an import makes of a file: once, whole, with forks and children, and what is new of one that has grown."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import pytest

import maka
from maka.journal import blobs, files
from maka.journal.errors import JournalConflict, JournalError, JournalLocked, JournalWriteError
from maka.journal.foreign import reading
from maka.journal.foreign.records import Begin
from maka.journal.reader import open_source
from maka.journal.store import FileStore
from maka.repair import importing
from maka.repair.importing import Imported, ImportReport, import_file
from support import played
from support.foreign import assert_legal
from support.played import answer, branch, child, prompt, result, written

WHOLE = [
    prompt("1", "one"),
    answer("1"),
    branch("x", "1"),
    prompt("2", "withdrawn", thread="x"),
    answer("never", thread="x"),
    prompt("3", "two"),
    answer("2", "c1"),
    child("kid", "c1"),
    prompt("k1", "do it", thread="kid"),
    answer("it is done", thread="kid"),
    result("c1", image="iVBORw0KGgo="),
    answer("3", "c2"),
]
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    monkeypatch.setitem(reading.READERS, played.FORMAT, played.read)
    return FileStore(tmp_path / "root")


@pytest.fixture
def take(tmp_path: Path, store: FileStore) -> Callable[..., ImportReport]:
    def take(*lines: dict[str, Any], data: bytes | None = None, **options: Any) -> ImportReport:
        path = tmp_path / "file.jsonl"
        path.write_bytes(written(*lines) if data is None else data)
        with open_source(path) as raw:
            return import_file(raw, played.FORMAT, store, **options)

    return take


ALL_OF_IT = dict.fromkeys(("", "x", "kid"), "unchanged")


def actions(report: ImportReport) -> dict[str, str]:
    return {session.thread: session.action for session in report.sessions}


def main_of(report: ImportReport) -> Imported:
    return next(session for session in report.sessions if session.thread == "")


def texts(store: FileStore, session_id: str) -> list[str]:
    messages = maka.inspect(session_id, root=store.root).messages()
    return [block["text"] for message in messages for block in message["content"] if block["kind"] == "text"]


def everything(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "journal.lock"
    }


def test_a_file_becomes_a_session_with_forks_and_children(take: Any, store: FileStore) -> None:
    report = take(*WHOLE)
    assert actions(report) == {"": "created", "x": "created", "kid": "created"}
    assert {session.thread: session.kind for session in report.sessions} == {
        "": "main",
        "x": "branch",
        "kid": "subagent",
    }
    main = maka.load("played-1", root=store.root)
    assert main.verdict == "healthy"
    assert main.header is not None
    assert main.header.imported_from == {
        "format": "played",
        "session_id": "played-1",
        "sha256": report.sha256,
        "bytes": report.bytes,
    }
    assert [turn["status"] for turn in main.turns()] == ["completed", "interrupted"]
    assert [call["state"] for turn in main.turns() for call in turn["calls"]] == ["ok", "unknown"]
    assert [event.ts for event in main.events][:2] == [1_001, 1_001]
    [fork] = [session.session_id for session in report.sessions if session.thread == "x"]
    assert texts(store, fork) == ["one", "1", "withdrawn", "never"]
    [kid] = [session.session_id for session in report.sessions if session.thread == "kid"]
    view = maka.inspect(kid, root=store.root)
    assert view.header is not None
    assert view.header.child_of is not None
    assert view.header.child_of["session_id"] == "played-1"
    assert view.header.child_of["call_id"] == "c1"
    assert view.header.child_of["turn_id"] == main.turns()[1]["turn_id"]
    for session_id in (fork, kid, "played-1"):
        assert maka.inspect(session_id, root=store.root).findings == []


def test_a_session_that_was_imported_goes_on_like_any_other(take: Any, store: FileStore) -> None:
    take(*WHOLE)
    with maka.open_session("played-1", root=store.root) as journal:
        journal.append_durable(maka.Draft("session/updated", {"patch": {"name": "mine"}}))
    # What was written since is no part of the file.
    assert actions(take(*WHOLE)) == ALL_OF_IT


def test_the_same_file_changes_nothing(take: Any, store: FileStore) -> None:
    made = take(*WHOLE)
    before = everything(store.root)
    again = take(*WHOLE)
    assert actions(again) == ALL_OF_IT
    named = {(each.thread, each.session_id, each.kind) for each in made.sessions}
    assert {(each.thread, each.session_id, each.kind) for each in again.sessions} == named
    assert everything(store.root) == before


def test_a_file_that_has_grown_adds_only_what_is_new(take: Any, store: FileStore) -> None:
    take(*WHOLE)
    before = everything(store.root)
    grown = [*WHOLE, result("c2"), answer("4"), prompt("4", "three"), answer("5")]
    report = take(*grown)
    assert actions(report) == {"": "grown", "x": "unchanged", "kid": "unchanged"}
    session = main_of(report)
    assert session.of == "played-1"
    assert texts(store, session.session_id) == ["one", "1", "two", "2", "3", "4", "three", "5"]
    view = maka.inspect(session.session_id, root=store.root)
    assert view.header is not None
    assert view.header.parent is not None
    assert view.header.parent["session_id"] == "played-1"
    assert [turn["status"] for turn in view.turns()][1:] == ["completed", "interrupted"]
    # The first turn stands in the parent alone.
    assert not any(event.data.get("message_id") == "1" for event in view.events)
    after = everything(store.root)
    assert {name: after[name] for name in before} == before
    assert actions(take(*grown)) == {"": "unchanged"}
    further = take(*grown, prompt("5", "four"))
    assert main_of(further).of == session.session_id
    assert texts(store, main_of(further).session_id)[-3:] == ["three", "5", "four"]
    assert actions(take(*WHOLE)) == ALL_OF_IT
    assert everything(store.root).keys() > after.keys()


def test_an_older_copy_of_a_file_is_on_record(take: Any, store: FileStore) -> None:
    take(*WHOLE)
    before = everything(store.root)
    assert actions(take(*WHOLE[:5])) == {"": "unchanged"}
    assert everything(store.root) == before
    assert actions(take(*WHOLE[:4], prompt("z", "else")))[""] == "created"


def test_a_file_that_grew_in_its_first_turn_is_made_anew(take: Any, store: FileStore) -> None:
    take(prompt("1", "one"))
    report = take(prompt("1", "one"), answer("1"))
    assert actions(report) == {"": "grown"}
    assert texts(store, main_of(report).session_id) == ["one", "1"]


def test_a_turn_that_is_withdrawn_later_stays_in_what_was_imported_before(
    take: Any, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of the file tells that a turn belongs to a branch: the session goes on from the last turn that it has."""
    began = [prompt("1", "one"), answer("1"), prompt("2", "two"), answer("2")]
    take(*began)

    def rewound(source: Any, report: Any, name: str) -> Any:
        for record in played.read(source, report, name):
            withdrawn = record.place.line in (3, 4)
            if record.place.line == 3:
                yield Begin(place=record.place, thread="x", kind="branch", parent="", after="1")
            yield attrs.evolve(record, thread="x") if withdrawn else record

    monkeypatch.setitem(reading.READERS, played.FORMAT, rewound)
    report = take(*began, prompt("3", "instead"), answer("3"))
    assert actions(report) == {"": "grown", "x": "created"}
    assert texts(store, main_of(report).session_id) == ["one", "1", "instead", "3"]
    [fork] = [session.session_id for session in report.sessions if session.thread == "x"]
    assert texts(store, fork) == ["one", "1", "two", "2"]
    assert texts(store, "played-1") == ["one", "1", "two", "2"]
    for session in report.sessions:
        assert maka.inspect(session.session_id, root=store.root).findings == []


def test_a_file_that_was_rewritten_is_another_session(take: Any, store: FileStore) -> None:
    take(*WHOLE)
    report = take(prompt("1", "eins"), answer("1"))
    assert actions(report) == {"": "created"}
    assert main_of(report).session_id == f"played-1-{report.sha256[:8]}"
    assert report.report.findings[0].code == "rewritten"
    assert texts(store, "played-1")[0] == "one"
    assert texts(store, main_of(report).session_id) == ["eins", "1"]


def test_a_session_of_the_root_is_not_touched_by_a_file_of_its_name(take: Any, store: FileStore) -> None:
    store.create(maka.Draft("session/header", {**HEADER, "session_id": "played-1"})).close()
    before = everything(store.root)
    session = main_of(take(*WHOLE))
    assert session.session_id != "played-1"
    assert {name: everything(store.root)[name] for name in before} == before


HEADER = {
    "format": 1,
    "created_by": {"name": "maka", "version": "0"},
    "cwd": "/w",
    "backend": "b",
    "model": "m",
    "permission_mode": "ask",
}


def test_a_dry_run_tells_the_same_and_writes_nothing(take: Any, store: FileStore) -> None:
    told = take(*WHOLE, dry_run=True)
    assert not store.root.exists()
    made = take(*WHOLE)
    assert told.sessions == made.sessions
    assert told.report.findings == made.report.findings
    before = everything(store.root)
    assert actions(take(*WHOLE, prompt("4", "more"), dry_run=True))[""] == "grown"
    assert everything(store.root) == before


def test_the_file_itself_is_kept_as_a_blob(take: Any, store: FileStore) -> None:
    report = take(*WHOLE)
    place = store.directory("played-1")
    assert blobs.get(place, f"sha256:{report.sha256}") == written(*WHOLE)


def test_the_file_is_left_out_where_that_is_wanted(take: Any, store: FileStore) -> None:
    report = take(*WHOLE, original=False)
    assert not blobs.locate(store.directory("played-1"), f"sha256:{report.sha256}").exists()
    assert actions(take(*WHOLE)) == ALL_OF_IT


def test_an_image_lies_in_a_blob_and_has_its_real_type(take: Any, store: FileStore) -> None:
    import base64

    svg = b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>"
    take(
        prompt("1", "one"),
        answer("1", "a", "b", "c"),
        result("a", image=base64.b64encode(PNG).decode()),
        result("b", image=base64.b64encode(svg).decode()),
        result("c", image="no base64!"),
    )
    messages = maka.inspect("played-1", root=store.root).messages()
    found = [block for result in messages[2]["content"] for block in result["content"] if block["kind"] == "image"]
    place = store.directory("played-1")
    assert [block["media_type"] for block in found] == ["image/png", "image/svg+xml", "image/png"]
    assert [blobs.get(place, block["ref"]) for block in found[:2]] == [PNG, svg]
    assert blobs.get(place, found[2]["ref"]) == b"no base64!"


def test_a_long_text_lies_in_a_blob(take: Any, store: FileStore) -> None:
    long = "ä" * 300_000
    take(prompt("1", long), answer("1"), prompt("2", "two"))
    [first, *_] = maka.inspect("played-1", root=store.root).messages()
    [block] = first["content"]
    assert block["text"] == long[: len(block["text"])]
    assert len(block["text"]) < 20_000
    assert blobs.get(store.directory("played-1"), block["ref"]).decode() == long
    # A text that lies elsewhere is the same text.
    grown = take(prompt("1", long), answer("1"), prompt("2", "two"), answer("2"))
    assert main_of(grown).action == "grown"
    assert maka.inspect(main_of(grown).session_id, root=store.root).header.parent is not None  # type: ignore[union-attr]


def test_what_a_line_has_no_room_for_lies_in_blobs(take: Any, store: FileStore) -> None:
    """Arguments, many texts at once, and lines that are only kept."""
    huge = "x" * ((16 << 20) - 200)
    many = [f"c{number}" for number in range(300)]
    take(
        prompt("1", "one"),
        answer("1", "a", arguments=huge),
        result("a"),
        answer("2", *many, arguments="y" * 100_000),
        {"k": "kept", "value": huge},
    )
    view = maka.inspect("played-1", root=store.root)
    assert [finding.code for finding in view.findings] == ["extension_events"]
    place = store.directory("played-1")
    [first, second] = [event.data["content"] for event in view.events if event.type == "assistant/message"]
    assert blobs.get(place, first[1]["ref"]).decode() == huge
    assert {len(block["arguments"]) for block in second[1:]} == {16 * 1024}
    [kept] = [event.data for event in view.events if event.type == "x-foreign/line"]
    assert huge.encode() in blobs.get(place, kept["ref"])
    assert_legal(view.messages())


@pytest.mark.parametrize("session_id", ["..", ".", "../../etc", "a/b", "", "x" * 500, "a\0b", ".hidden", 5, None])
def test_no_id_leaves_the_root(session_id: Any, take: Any, store: FileStore, tmp_path: Path) -> None:
    report = take({**prompt("1", "one"), "session_id": session_id}, answer("1"))
    assert main_of(report).session_id.startswith("played-")
    assert sorted(os.listdir(tmp_path)) == ["file.jsonl", "root"]
    assert actions(take({**prompt("1", "one"), "session_id": session_id}, answer("1"))) == {"": "unchanged"}


def test_an_import_that_was_cut_off_begins_again(take: Any, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each session that is moved in, and before the first."""
    rename, at = os.rename, 0
    moved: list[str] = []

    def cut(source: Any, target: Any) -> None:
        staged = str(store.root / importing.STAGING)
        if str(source).startswith(staged) and not str(target).startswith(staged):
            if len(moved) == at:
                raise KeyboardInterrupt
            moved.append(str(target))
        rename(source, target)

    monkeypatch.setattr(importing, "_Staging", Abandoned)
    for at in (0, 1, 1):
        moved.clear()
        with monkeypatch.context() as patch:
            patch.setattr("os.rename", cut)
            with pytest.raises(KeyboardInterrupt):
                take(*WHOLE)
        assert len(moved) == at
        assert not store.path("played-1").exists()
    report = take(*WHOLE)
    assert actions(report) == {"": "created", "x": "created", "kid": "created"}
    for session in report.sessions:
        assert maka.inspect(session.session_id, root=store.root).findings == []


def test_a_fork_that_was_gone_on_with_stays_where_it_is(take: Any, store: FileStore) -> None:
    """Also where the session that it was forked from is gone, and is made again."""
    report = take(*WHOLE)
    [fork] = [session.session_id for session in report.sessions if session.thread == "x"]
    with maka.open_session(fork, root=store.root) as journal:
        journal.append_durable(maka.Draft("session/note", {"kind": "mine", "text": "precious"}))
    os.rename(store.directory("played-1"), store.root / "elsewhere")
    take(*WHOLE)
    assert "precious" in store.path(fork).read_text()
    assert maka.inspect(fork, root=store.root).findings == []
    # What is something else is not touched either.
    os.rename(store.directory("played-1"), store.root / "elsewhere-too")
    lines = store.path(fork).read_bytes().splitlines(keepends=True)
    store.path(fork).write_bytes(b"".join(lines[:-3]))
    with pytest.raises(JournalConflict, match="move it elsewhere"):
        take(*WHOLE)
    assert store.path(fork).read_bytes() == b"".join(lines[:-3])


def test_whoever_comes_second_makes_no_second_session(
    take: Any, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, first = importing._Staging.__enter__, [True]

    def slowly(self: importing._Staging) -> importing._Staging:
        if first.pop() if first else False:
            take(*WHOLE)
        return enter(self)

    monkeypatch.setattr(importing._Staging, "__enter__", slowly)
    with pytest.raises(JournalConflict, match="meanwhile"):
        take(*WHOLE)
    assert len(store.ids()) == 3
    assert actions(take(*WHOLE)) == ALL_OF_IT


def test_what_a_compaction_keeps_stands_in_the_journal_of_the_compaction(take: Any, store: FileStore) -> None:
    began = [prompt("1", "one"), answer("1"), prompt("2", "two"), answer("2"), {"k": "end"}]
    take(*began)
    grown = [*began, {"k": "compact", "summary": "so far", "kept_from": "2"}, prompt("3", "three"), answer("3")]
    report = take(*grown)
    assert main_of(report).action == "grown"
    assert texts(store, main_of(report).session_id) == ["so far", "two", "2", "three", "3"]


class Abandoned(importing._Staging):
    """Killed: nothing is cleaned up but what the system does."""

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            super().__exit__(*exception)
        elif self._lock is not None:
            for writer in self._writers.values():
                with suppress(JournalError):
                    writer.close()
            self._lock.release()


def test_only_one_imports_a_file_at_a_time(
    take: Any, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from maka.journal.lock import SessionLock

    report = take(*WHOLE, dry_run=True)
    place = store.root / importing.STAGING / f"played-1-{report.sha256[:8]}"
    files.make_dirs(place)
    with SessionLock.acquire(place), pytest.raises(JournalLocked):
        take(*WHOLE)
    assert not store.path("played-1").exists()
    take(*WHOLE)
    assert os.listdir(store.root / importing.STAGING) == []


def test_a_full_disk_leaves_nothing_in_the_root(take: Any, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", full)
        with pytest.raises(JournalWriteError, match="No space"):
            take(*WHOLE)
    assert not store.path("played-1").exists()
    assert store.ids() == []
    assert actions(take(*WHOLE))[""] == "created"


def test_a_file_that_changes_meanwhile_is_not_imported(
    take: Any, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = played.read

    def changing(source: Any, report: Any, name: str) -> Any:
        yield from read(source, report, name)
        path = tmp_path / "file.jsonl"
        path.write_bytes(path.read_bytes().replace(b"one", b"two"))
        os.utime(path, ns=(1, 1))

    monkeypatch.setitem(reading.READERS, played.FORMAT, changing)
    for original in (True, False):
        with pytest.raises(JournalConflict, match="import it again"):
            take(*WHOLE, original=original)
    assert store.ids() == []


def test_a_file_that_grows_meanwhile_is_imported_as_it_was(
    take: Any, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = played.read

    def growing(source: Any, report: Any, name: str) -> Any:
        yield from read(source, report, name)
        with open(tmp_path / "file.jsonl", "ab") as file:
            file.write(written(prompt("8", "later")))

    with monkeypatch.context() as patch:
        patch.setitem(reading.READERS, played.FORMAT, growing)
        report = take(*WHOLE)
    assert report.sha256 == sha256(written(*WHOLE)).hexdigest()
    assert main_of(take(*WHOLE, prompt("8", "later"))).action == "grown"
