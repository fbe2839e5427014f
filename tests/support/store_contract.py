"""What every store promises, as tests that any backend can run: subclass ``StoreContract`` and give it a ``store``."""

from collections.abc import Callable
from typing import Any

import pytest

from maka.journal.errors import InvalidEvent, JournalConflict, JournalLocked, SessionNotFound
from maka.journal.store import Store

from .drafts import begin, end, header, note, rename, whole_turn


class StoreContract:
    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    @pytest.fixture
    def reopened(self, store: Store) -> Callable[[], Store]:
        """Gives the store as a new process would see it."""
        return lambda: store

    def types(self, store: Store, session_id: str = "s1") -> list[str]:
        return [event.type for event in store.read(session_id)]

    def test_a_new_session_is_there_with_its_first_batch(self, store: Store, reopened: Callable[[], Store]) -> None:
        writer = store.create(header(), begin())
        assert writer.next_seq == 3
        assert self.types(reopened()) == ["session/header", "turn/start", "user/message"]
        writer.close()
        assert [event.seq for event in reopened().read("s1")] == [0, 1, 2]

    def test_a_taken_id_is_a_conflict_and_changes_nothing(self, store: Store) -> None:
        store.create(header(), [note("first")]).close()
        with pytest.raises(JournalConflict):
            store.create(header(), [note("second")])
        assert [event.data.get("text") for event in store.read("s1")][1:] == ["first"]
        store.open("s1").close()

    @pytest.mark.parametrize("session_id", ["", ".", "..", "a/b", "/x", "a\n", "-a", ".a", "é", "a" * 129, "a\0"])
    def test_what_is_no_session_id_is_refused_everywhere(self, store: Store, session_id: str) -> None:
        with pytest.raises(InvalidEvent):
            store.create(header(session_id))
        for call in (store.open, store.read, lambda name: store.append(name, [note()])):
            with pytest.raises(SessionNotFound):
                call(session_id)
        assert store.list() == []

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        for call in (store.open, store.read, lambda name: store.append(name, [note()])):
            with pytest.raises(SessionNotFound):
                call("nothing")
        assert store.list() == []

    def test_one_writer_at_a_time(self, store: Store, reopened: Callable[[], Store]) -> None:
        writer = store.create(header())
        for call in (store.open, reopened().open, lambda name: store.append(name, [note()])):
            with pytest.raises(JournalLocked):
                call("s1")
        writer.append(note())
        writer.close()
        writer = reopened().open("s1")
        assert writer.next_seq == 2
        writer.close()

    def test_appended_is_read_after_the_barrier(self, store: Store, reopened: Callable[[], Store]) -> None:
        store.create(header()).close()
        writer = store.open("s1")
        event = writer.append(note("one"))
        batch = writer.append_batch([note("two"), note("three")])
        writer.flush()
        assert [found.to_json() for found in reopened().read("s1", after=0)] == [
            found.to_json() for found in (event, *batch)
        ]
        assert [found.more for found in (event, *batch)] == [0, 1, 0]
        assert list(reopened().read("s1", after=3)) == []
        writer.close()

    def test_append_is_durable_and_frees_the_session(self, store: Store, reopened: Callable[[], Store]) -> None:
        store.create(header()).close()
        events = store.append("s1", [*begin(), *end()])
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert self.types(reopened())[1:] == ["turn/start", "user/message", "turn/end", "run/settled"]
        store.open("s1").close()

    def test_expected_seq_is_a_typed_conflict(self, store: Store) -> None:
        store.create(header()).close()
        assert store.append("s1", [note(), note()], expected_seq=1)[0].seq == 1
        for wrong in (0, 1, 2, 4):
            with pytest.raises(JournalConflict):
                store.append("s1", [note()], expected_seq=wrong)
        writer = store.open("s1")
        with pytest.raises(JournalConflict):
            writer.append(note(), expected_seq=4)
        assert writer.append(note(), expected_seq=3).seq == 3
        with pytest.raises(JournalConflict):
            writer.append_batch([note()], expected_seq=3)
        writer.close()
        assert len(list(store.read("s1"))) == 4

    def test_a_batch_stands_or_falls_together(self, store: Store) -> None:
        store.create(header()).close()
        with pytest.raises(InvalidEvent):
            store.append("s1", [note(), *begin(), *begin()])
        assert self.types(store) == ["session/header"]
        with pytest.raises(InvalidEvent):
            store.create(header("s2"), end())
        assert [row["session_id"] for row in store.list()] == ["s1"]

    def test_the_list_tells_name_turns_and_last_activity(self, store: Store) -> None:
        store.create(header("b", name="first"), whole_turn(1)).close()
        store.append("b", [rename("second"), *whole_turn(2)])
        store.create(header("a")).close()
        rows = store.list()
        assert [row["session_id"] for row in rows] == ["a", "b"]
        last = list(store.read("b"))[-1].ts
        expected: dict[str, Any] = {"session_id": "b", "name": "second", "last_activity": last, "turns": 2}
        assert {key: rows[1][key] for key in expected} == expected
        assert (rows[0]["name"], rows[0]["turns"]) == (None, 0)
        others = {"verdict", "labels", "flagged", "archived", "unsettled", "active_plan", "pending_handoff"}
        others |= {"queued", "admitted"}
        assert all(set(row) == {*expected, *others} for row in rows)

    def test_sessions_do_not_touch_each_other(self, store: Store) -> None:
        first, second = store.create(header("a")), store.create(header("b"))
        first.append(note("a"))
        second.append(note("b"))
        first.close()
        second.close()
        for name in "ab":
            assert [event.data.get("text") for event in store.read(name)][1:] == [name]
