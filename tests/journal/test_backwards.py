"""Pages of history from the end of a file, and the events between two numbers: the same as whoever reads all of it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from maka.journal import backwards
from maka.journal.backwards import events_before, events_between
from maka.journal.codec import MAX_LINE
from maka.journal.errors import JournalError, SessionNotFound
from maka.journal.events import Event
from maka.journal.reader import FileSource, read
from support.builder import Builder

CORPUS = [
    path for path in sorted((Path(__file__).parents[2] / "fixtures" / "corpus").rglob("*.jsonl")) if path.is_file()
]
MUCH = 1 << 40


def anything(type_: str) -> bool:
    return True


def told(type_: str) -> bool:
    return type_ not in ("assistant/delta", "request/header")


def pages(path: Path, limit: int, most_bytes: int, wanted: Callable[[str], bool] = anything) -> list[list[Event]]:
    """All pages, the newest first."""
    out: list[list[Event]] = []
    before: int | None = None
    while True:
        events, following = events_before(path, before, limit, wanted, most_bytes=most_bytes)
        out.append(events)
        if following is None:
            return out
        assert following == events[0].seq
        assert before is None or following < before, "a page lies below the one before it"
        before = following


def numbers(events: Iterator[Event] | list[Event]) -> list[int]:
    return [event.seq for event in events]


def story() -> Builder:
    builder = Builder().plain_turn("grüße").tool_turn().start().step()
    for piece in ("a", "b" * 300, "c"):
        builder.delta(piece)
    return builder.says("a" + "b" * 300 + "c").end_step().end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 18])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_pages_are_the_journal(path: Path, piece: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backwards, "_PIECE", piece)
    builder = story()
    path.write_bytes(builder.raw())
    found = pages(path, limit, MUCH)
    assert [event for page in reversed(found) for event in numbers(page)] == list(range(builder.seq))
    assert all(len(page) == limit for page in found[:-1])
    raw = path.read_bytes()
    for event in (event for page in found for event in page):
        line = raw[event.offset : event.offset + event.length]
        assert line == builder.lines[event.seq]


def test_only_what_is_wanted_counts_and_the_oldest_page_knows_that_it_is(path: Path) -> None:
    builder = story()
    path.write_bytes(builder.raw())
    found = pages(path, 4, MUCH, told)
    events = [event for page in reversed(found) for event in page]
    assert [event.type for event in events if not told(event.type)] == []
    assert len(events) == builder.seq - 3 - sum(b'"type":"request/header"' in line for line in builder.lines)
    ends, following = events_before(path, None, 3, lambda type_: type_ == "turn/end", most_bytes=MUCH)
    assert len(ends) == 3
    assert following is None, "there are three, and nothing wanted is older"
    assert events_before(path, None, 3, lambda type_: False, most_bytes=MUCH) == ([], None)
    assert events_before(path, 0, 3, anything, most_bytes=MUCH) == ([], None)


def test_a_page_has_so_many_bytes_and_one_event_in_any_case(path: Path) -> None:
    builder = story()
    path.write_bytes(builder.raw())
    assert [len(page) for page in pages(path, 1000, 0)] == [1] * builder.seq
    last = [len(line) for line in builder.lines[-2:]]
    events, following = events_before(path, None, 1000, anything, most_bytes=sum(last))
    assert (numbers(events), following) == ([builder.seq - 2, builder.seq - 1], builder.seq - 2)
    assert len(events_before(path, None, 1000, anything, most_bytes=sum(last) - 1)[0]) == 1


@pytest.mark.parametrize("piece", [7, 1 << 18])
def test_what_lies_between_two_numbers(path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backwards, "_PIECE", piece)
    builder = story()
    path.write_bytes(builder.raw())
    last = builder.seq - 1
    assert numbers(events_between(path, -1, last, anything)) == list(range(builder.seq))
    assert numbers(events_between(path, 3, 6, anything)) == [4, 5, 6]
    assert numbers(events_between(path, last - 1, last + 9, anything)) == [last]
    assert numbers(events_between(path, last, last, anything)) == []
    assert [event.type for event in events_between(path, -1, last, lambda type_: type_ == "turn/end")] == [
        "turn/end"
    ] * 3


def test_what_is_appended_meanwhile_and_what_has_no_end_yet_is_not_seen(path: Path) -> None:
    builder = story()
    path.write_bytes(builder.raw())
    seen = builder.seq
    events = events_between(path, 0, MUCH, anything)
    assert next(events).seq == 1
    builder.plain_turn()
    path.write_bytes(builder.raw()[:-1])
    assert numbers(events) == list(range(2, seen))
    assert events_before(path, None, 1, anything, most_bytes=MUCH)[0][0].seq == builder.seq - 2


def test_a_file_that_is_cut_back_meanwhile_gives_what_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backwards, "_PIECE", 64)
    builder = story()
    raw = builder.raw()
    path.write_bytes(raw)
    left = raw.rindex(b"\n", 0, -100) + 1
    real = FileSource.read

    def cut(source: FileSource, offset: int, length: int) -> bytes:
        os.truncate(path, left)
        return real(source, offset, length)

    monkeypatch.setattr(FileSource, "read", cut)
    events, _ = events_before(path, None, 1000, anything, most_bytes=MUCH)
    assert numbers(events) == list(range(raw[:left].count(b"\n")))


def test_nothing_that_a_file_holds_is_an_error_and_what_is_whole_is_told_as_it_is() -> None:
    assert len(CORPUS) > 50
    for case in CORPUS:
        found = pages(case, 3, MUCH)
        seqs = [seq for page in reversed(found) for seq in numbers(page)]
        assert seqs == sorted(set(seqs)), case
        assert numbers(events_between(case, -1, MUCH, anything)) == seqs, case
        reading = read(case)
        if not reading.scan.findings:
            assert seqs == [0, *numbers(reading.events())], case


# ---------------------------------------------------------------- a damaged journal


def test_lines_that_are_no_event_are_passed_over(path: Path) -> None:
    lines = story().lines
    for number, bad in ((3, b""), (5, b"\0" * 50), (7, lines[7][:-9]), (9, b"[" * 300), (11, b"\xff" + lines[11])):
        lines[number] = bad
    path.write_bytes(b"\n".join(lines) + b"\n")
    seqs = numbers(events_before(path, None, 1000, anything, most_bytes=MUCH)[0])
    assert seqs == [seq for seq in range(len(lines)) if seq not in (3, 5, 7, 9, 11)]
    assert numbers(events_between(path, 4, 10, anything)) == [6, 8, 10]


def test_a_line_whose_number_was_changed_hides_no_other(path: Path) -> None:
    lines = story().lines
    lines[9] = lines[9].replace(b'{"seq":9,', b'{"seq":1,')
    path.write_bytes(b"\n".join(lines) + b"\n")
    seqs = numbers(events_before(path, None, 1000, anything, most_bytes=MUCH)[0])
    assert seqs == [seq for seq in range(len(lines)) if seq != 9]


def test_lost_lines_are_lost_and_no_others(path: Path) -> None:
    lines = story().lines
    path.write_bytes(b"\n".join([*lines[:6], *lines[9:]]) + b"\n")
    seqs = numbers(events_before(path, None, 1000, anything, most_bytes=MUCH)[0])
    assert seqs == [*range(6), *range(9, len(lines))]


def test_what_a_branch_left_that_did_not_stay_is_not_told(path: Path) -> None:
    builder = Builder().plain_turn()
    fork, seq, prev = len(builder.lines), builder.seq, builder.prev
    builder.add("session/note", {"kind": "x", "text": "left"})
    builder.add("session/note", {"kind": "x", "text": "left"})
    builder.seq, builder.prev = seq, prev
    builder.add("session/note", {"kind": "x", "text": "stays"})
    path.write_bytes(builder.raw())
    events, _ = events_before(path, None, 1000, anything, most_bytes=MUCH)
    assert numbers(events) == list(range(fork + 1))
    assert events[-1].data["text"] == "stays"


def test_a_mark_and_carriage_returns_do_not_matter(path: Path) -> None:
    builder = story()
    path.write_bytes(b"\xef\xbb\xbf" + builder.raw().replace(b"\n", b"\r\n"))
    assert numbers(events_before(path, None, 1000, anything, most_bytes=MUCH)[0]) == list(range(builder.seq))
    assert numbers(events_between(path, -1, MUCH, anything)) == list(range(builder.seq))


def test_a_line_that_is_too_long_is_not_held(path: Path) -> None:
    builder = story()
    seq = builder.seq
    builder.add("session/note", {"kind": "x", "text": "y" * (MAX_LINE + 10)})
    builder.add("session/note", {"kind": "x", "text": "z"})
    path.write_bytes(builder.raw())
    assert numbers(events_before(path, None, 3, anything, most_bytes=MUCH)[0]) == [seq - 2, seq - 1, seq + 1]


# ---------------------------------------------------------------- the file


def test_an_empty_file_has_no_events_and_one_that_is_not_there_is_told(path: Path) -> None:
    with pytest.raises(SessionNotFound):
        events_before(path, None, 1, anything, most_bytes=MUCH)
    with pytest.raises(SessionNotFound):
        next(events_between(path, 0, 1, anything))
    path.write_bytes(b"")
    assert events_before(path, None, 1, anything, most_bytes=MUCH) == ([], None)
    assert list(events_between(path, -1, 5, anything)) == []


def test_a_disk_that_fails_is_told_in_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(story().raw())

    def fail(source: FileSource, offset: int, length: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileSource, "read", fail)
    for look in (
        lambda: events_before(path, None, 1, anything, most_bytes=MUCH),
        lambda: list(events_between(path, 0, 1, anything)),
    ):
        with pytest.raises(JournalError, match=r"cannot read .*Input/output error; the bytes were not touched"):
            look()


def test_a_page_near_the_end_of_a_long_journal_reads_its_end_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    for _ in range(300):
        builder.add("session/note", {"kind": "x", "text": "y" * 5000})
    path.write_bytes(builder.raw())
    reads: list[int] = []
    real = FileSource.read

    def counted(source: FileSource, offset: int, length: int) -> bytes:
        reads.append(length)
        return real(source, offset, length)

    monkeypatch.setattr(FileSource, "read", counted)
    assert len(events_before(path, None, 10, anything, most_bytes=MUCH)[0]) == 10
    assert numbers(events_between(path, 295, 298, anything)) == [296, 297, 298]
    assert sum(reads) < 700_000
