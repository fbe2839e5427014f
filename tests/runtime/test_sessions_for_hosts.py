"""What a host needs of the sessions and the kernel beneath it: listeners, stops that take back, changes that are made
once, pages of sessions, and whether something waits.
"""

from pathlib import Path

import pytest

import maka
from maka.journal.events import Draft, Event
from maka.journal.state import State
from maka.runtime.backends.scripted import Never
from maka.runtime.errors import SessionBusy
from maka.runtime.journals import OpenSession
from maka.runtime.session_events import SessionEvent
from support.managed import data_of, events_of, go, managing, playing, types_of

MESSAGE = {"content": [{"kind": "text", "text": "later"}]}


def accepted(message_id: str, placement: str = "next_turn") -> Draft:
    said = {"message_id": message_id, "placement": placement, "disposition": "followup", **MESSAGE, "digest": "0" * 64}
    return Draft("message/accepted", said)


def test_a_listener_is_told_each_event_and_the_stream_only_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["one"])) as manager:
            await manager.create(session_id="s")
            heard: list[SessionEvent] = []
            stream = manager.kernel.start_turn("s", text="go", listener=heard.append)
            assert [event async for event in stream] == []
            kinds = [event.kind for event in heard]
            assert kinds == ["step_start", "text_delta", "text_complete", "step_end", "complete"]

    go(main())


def test_however_much_is_told_at_once_a_listener_misses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        # More than is kept for a consumer, in one piece each.
        async with managing(tmp_path, playing(["x" * (3 << 20), "y" * (3 << 20)])) as manager:
            await manager.create(session_id="s")
            heard: list[SessionEvent] = []
            stream = manager.kernel.start_turn("s", text="go", listener=heard.append)
            assert [event async for event in stream] == []
            texts = [event.data["text"][:1] for event in heard if event.kind == "text_delta"]
            assert (texts, stream.dropped) == (["x", "y"], 0)

    go(main())


def test_each_event_that_is_appended_can_be_watched(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[tuple[str, int]] = []

        def watch(session: OpenSession, event: Event) -> None:
            assert session.session_id == "s"
            assert session.journal.next_seq > event.seq
            seen.append((event.type, event.seq))

        async with managing(tmp_path, playing(["hello"]), watch=watch) as manager:
            await manager.create(session_id="s")
            async for _ in manager.send("s", "go"):
                pass
            await manager.rename("s", "Named")
        # But for the header, which was there before the session was opened.
        assert seen == [(event["type"], event["seq"]) for event in events_of(tmp_path, "s")][1:]

    go(main())


def test_a_stop_takes_back_what_waits_in_its_own_event_and_says_who_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["so far", Never()])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await stream.started()
            await manager.kernel.append("s", lambda _: [accepted("m1"), accepted("m2")])

            def taken(state: State) -> list[str]:
                return list(state.queue.waiting)

            await manager.kernel.stop_session("s", stop_id="x", retract=taken, client="desktop")
        [stop] = data_of(tmp_path, "s", "turn/stop_requested")
        assert (stop["stop_id"], stop["retract"], stop["client"]) == ("x", ["m1", "m2"], "desktop")
        assert "message/retracted" not in types_of(tmp_path, "s")
        session = maka.inspect("s", root=tmp_path)
        assert session.queue() == {"steering": [], "followup": []}

    go(main())


def test_a_plain_stop_keeps_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["so far", Never()])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await stream.started()
            await manager.kernel.append("s", lambda _: [accepted("m1")])
            await manager.stop("s")
        [stop] = data_of(tmp_path, "s", "turn/stop_requested")
        assert not {"retract", "client"} & stop.keys()
        assert [row["message_id"] for row in maka.inspect("s", root=tmp_path).queue()["followup"]] == ["m1"]

    go(main())


def test_a_change_is_made_once_for_each_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            first = await manager.update("s", {"name": "A"}, request_id="r")
            assert await manager.update("s", {"name": "A"}, request_id="r") == first
            with pytest.raises(maka.JournalConflict, match="under an id of its own"):
                await manager.update("s", {"name": "B"}, request_id="r")
        async with managing(tmp_path, playing()) as manager:
            assert await manager.update("s", {"name": "A"}, request_id="r") == first
        assert len(data_of(tmp_path, "s", "session/updated")) == 1

    go(main())


def test_sessions_come_in_pages_by_their_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            ids = [f"s{number}" for number in range(5)]
            for session_id in reversed(ids):
                await manager.create(session_id=session_id)
            pages, after = [], None
            while True:
                rows, after = await manager.page(after=after, limit=2)
                pages.append([row["session_id"] for row in rows])
                if after is None:
                    break
            assert pages == [["s0", "s1"], ["s2", "s3"], ["s4"]]
            assert [row["running"] for row in rows] == [[]]
            assert await manager.page(after="s4", limit=2) == ([], None)

    go(main())


def test_a_session_that_is_used_is_not_given_up_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Never()])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await stream.started()
            with pytest.raises(SessionBusy):
                await manager.release("s")
            await stream.aclose()
            await manager.release("s")
            assert maka.load("s", root=tmp_path).repaired_on_disk

    go(main())


@pytest.mark.parametrize("opened", [False, True])
def test_a_recovery_tells_whether_something_waits(tmp_path: Path, opened: bool) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            assert not (await manager.recover("s")).waits
            await manager.kernel.append("s", lambda _: [accepted("m")])
            if not opened:
                await manager.release("s")
            assert (await manager.recover("s")).waits
            [row] = await manager.list()
            assert row["queued"] == 1

    go(main())
