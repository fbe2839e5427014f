"""Following a journal: what is new, and the way back when the file is not what it was."""

import os
from pathlib import Path

import pytest

from maka.cli.follow import Follower, Look
from maka.journal.errors import SessionNotFound
from maka.journal.reader import FileSource, open_source
from support.builder import Builder


@pytest.fixture
def followed(tmp_path: Path) -> tuple[Builder, Path, Follower]:
    """A journal of one turn, where it stands, and a follower that has read it."""
    journal = Builder().plain_turn()
    path = journal.write(tmp_path)
    follower = Follower(path)
    follower.start(3)
    return journal, path, follower


def types(look: Look) -> list[str]:
    return [event.type for event in look.events]


def test_it_begins_with_the_newest(tmp_path: Path) -> None:
    path = Builder().plain_turn().write(tmp_path)
    events, result = Follower(path).start(3)
    assert [event.type for event in events] == ["step/end", "turn/end", "run/settled"]
    assert result.events == 9


def test_none_of_the_newest_can_be_asked_for(tmp_path: Path) -> None:
    assert Follower(Builder().plain_turn().write(tmp_path)).start(0)[0] == []


def test_a_file_that_stands_still_brings_nothing(followed: tuple[Builder, Path, Follower]) -> None:
    assert followed[2].look() == Look()


def test_new_lines_come_once(followed: tuple[Builder, Path, Follower]) -> None:
    journal, path, follower = followed
    before = len(journal.raw())
    journal.start()
    path.write_bytes(path.read_bytes() + journal.raw()[before:])
    assert types(follower.look()) == ["turn/start", "user/message"]
    assert follower.look() == Look()


@pytest.mark.parametrize("missing", [1, 2, 60])
def test_a_line_is_shown_once_it_is_whole(followed: tuple[Builder, Path, Follower], missing: int) -> None:
    journal, path, follower = followed
    journal.add("session/note", {"kind": "hello"})
    path.write_bytes(journal.raw()[:-missing])
    first = types(follower.look())
    path.write_bytes(journal.raw())
    assert first + types(follower.look()) == ["session/note"]
    assert follower.look() == Look()
    journal.add("session/note", {"kind": "again"})
    path.write_bytes(journal.raw())
    assert [event.data["kind"] for event in follower.look().events] == ["again"]


def test_a_batch_is_shown_once_it_is_whole(followed: tuple[Builder, Path, Follower]) -> None:
    journal, path, follower = followed
    journal.start()
    path.write_bytes(b"".join(line + b"\n" for line in journal.lines[:-1]))
    assert follower.look().events == []
    path.write_bytes(journal.raw())
    assert types(follower.look()) == ["turn/start", "user/message"]


def test_a_file_that_shrank_is_taken_up_at_the_last_line_it_still_has(followed: tuple[Builder, Path, Follower]) -> None:
    journal, path, follower = followed
    path.write_bytes(b"".join(line + b"\n" for line in journal.lines[:-2]))
    look = follower.look()
    assert look.events == []
    assert len(look.said) == 1
    assert "shrank" in look.said[0]
    assert "after event 6" in look.said[0]
    path.write_bytes(journal.raw())
    assert types(follower.look()) == ["turn/end", "run/settled"]


def test_another_file_under_the_name_is_taken_up_at_the_last_common_line(
    followed: tuple[Builder, Path, Follower], tmp_path: Path
) -> None:
    journal, path, follower = followed
    journal.lines = journal.lines[:5]
    journal.seq, journal.prev = 5, journal.lines[-1][-34:-2].decode()
    journal.says("another answer")
    other = tmp_path / "other"
    other.write_bytes(journal.raw())
    os.replace(other, path)
    look = follower.look()
    assert "was replaced" in look.said[0]
    assert "after event 4" in look.said[0]
    assert [event.data["content"][0]["text"] for event in look.events] == ["another answer"]


def test_a_file_that_shrank_and_grew_between_two_looks_is_noticed(followed: tuple[Builder, Path, Follower]) -> None:
    journal, path, follower = followed
    journal.lines = journal.lines[:5]
    journal.seq, journal.prev = 5, journal.lines[-1][-34:-2].decode()
    journal.says("a much longer answer " * 100)
    path.write_bytes(journal.raw())
    look = follower.look()
    assert "changed" in look.said[0]
    assert types(look) == ["assistant/message"]


def test_a_stranger_is_shown_from_its_start(followed: tuple[Builder, Path, Follower]) -> None:
    _, path, follower = followed
    path.write_bytes(Builder("another").start().raw())
    look = follower.look()
    assert "from its start" in look.said[0]
    assert types(look) == ["session/header", "turn/start", "user/message"]


def test_a_file_that_is_gone_is_waited_for(followed: tuple[Builder, Path, Follower]) -> None:
    _, path, follower = followed
    aside = path.with_name("aside")
    path.rename(aside)
    assert "waiting" in follower.look().said[0]
    assert follower.look() == Look()
    aside.rename(path)
    assert follower.look() == Look()


def test_an_empty_file_is_followed_from_its_first_line(tmp_path: Path) -> None:
    journal = Builder()
    path = journal.write(tmp_path, b"")
    follower = Follower(path)
    assert follower.start(5)[0] == []
    path.write_bytes(journal.raw())
    assert types(follower.look()) == ["session/header"]


def test_without_a_file_there_is_nothing_to_follow(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound):
        Follower(tmp_path / "journal.jsonl").start(1)


def test_a_file_that_goes_between_two_looks_is_waited_for(
    followed: tuple[Builder, Path, Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, path, follower = followed
    journal.start()

    def late(place: Path) -> FileSource:
        path.unlink()
        return open_source(place)

    path.write_bytes(journal.raw())
    with monkeypatch.context() as patch:
        patch.setattr("maka.cli.follow.open_source", late)
        look = follower.look()
    assert (look.events, look.said) == ([], [f"{path} is gone; waiting for it to come back"])
    assert follower.look() == Look()
    path.write_bytes(journal.raw())
    assert types(follower.look()) == ["turn/start", "user/message"]
