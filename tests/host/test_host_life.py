"""A host from its start to its end, in one process: what it takes, what it gives back, and in what time."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from maka.journal.digests import digest_of
from maka.journal.errors import JournalWriteError
from maka.journal.events import Draft, Event
from maka.runtime.app import App
from maka.runtime.backends.scripted import Do, Faults, Never, Question, Tool, Turn, scripted_backend
from maka.runtime.host.connection import Caller
from maka.runtime.host.endpoint import read_registration
from maka.runtime.host.host import HostDeadlines, ShutdownLate, _next_of
from maka.runtime.host.operations import SubscriptionOpen
from maka.runtime.host.ownership import HostRunning, RootLock
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.scripted import Say, Wait
from support.host_app import COMPOSITION
from support.hosts import Root
from support.in_host import Life, a_host
from support.managed import app_of

SHORT = Deadlines(stop=0.1, dispose=0.1, after_step=0.1, exit=0.1, grace=0.05)


def play(given: Any) -> Any:
    word, _, rest = given.text.partition(" ")
    match word:
        case "hold":
            return Never()
        case "steps":
            return [part for number in range(int(rest)) for part in (Tool("look", {"n": number}), Wait(0.02))]
    return Say(given.text)


def app(faults: Faults | None = None, **more: Any) -> App:
    return app_of(scripted_backend(play, steps=True, faults=faults, **more))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(tmp_path / "root")
    made.path.mkdir(mode=0o700)
    made.create()
    return made


async def start(life: Life, text: str = "hold", turn_id: str = "t1", session_id: str = "s1") -> dict[str, Any]:
    started = await life.ask("turn.start", session_id=session_id, turn_id=turn_id, content=text)
    turn: dict[str, Any] = started["turn"]
    return turn


async def submit(life: Life, message_id: str, text: str = "hi") -> None:
    await life.ask("turn.message.submit", session_id="s1", message_id=message_id, content=text, placement="next_turn")


def test_a_host_is_registered_as_what_it_is(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app(), app_name="tests:app") as life:
            registration = read_registration(root.path)
            assert registration is not None
            assert registration.host_epoch == life.host.host_epoch
            assert (registration.state, registration.app) == ("ready", "tests:app")
            assert life.states == ["recovering", "ready"]
            status = await life.ask("host.status")
            assert (status["state"], status["active"], status["connections"]) == ("ready", [], 0)
            turn = await start(life)
            active = {"session_id": "s1", "turn_id": "t1", "run_id": turn["run_id"], "waiting": False, "queued": 0}
            assert (await life.ask("host.status"))["active"] == [active]
            await life.end()
        assert life.states == ["recovering", "ready", "draining"]
        assert read_registration(root.path) is None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


def test_a_root_has_one_host(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            with pytest.raises(HostRunning):
                async with a_host(root.path, app()):
                    pass
            assert read_registration(root.path) is not None
            assert (await life.ask("host.status"))["state"] == "ready"
        async with a_host(root.path, app()) as following:
            assert following.host.host_epoch != life.host.host_epoch

    asyncio.run(test())


def test_what_runs_is_stopped_and_what_waits_is_kept(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            await start(life)
            await submit(life, "m1")
            assert await life.ask("host.shutdown", mode="stop") == {"state": "draining"}
            await life.serving
        assert [event.data["reason"] for event in root.of_type("turn/end")] == [
            {"kind": "aborted", "source": "host_shutdown"}
        ]
        assert len(root.admissions()) == 1
        async with a_host(root.path, app()) as life:
            # The next one has begun it before it was ready.
            assert [data["message_id"] for data in root.admissions()][1:] == ["m1"]
            await life.until(lambda: len(root.of_type("run/settled")) == 2)

    asyncio.run(test())


def test_a_host_that_ends_tells_who_watches(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            opened = await life.ask("subscription.open", session_id="s1")
            watcher = life.host._watchers[opened["subscription_id"]]
            await start(life)
            await life.end()
            frames = []
            while (frame := watcher.subscription.take()) is not None:
                frames.append(frame)
        turns = [frame["snapshot"]["root_turn"] for frame in frames if frame["type"] == "projection"]
        assert turns[-1]["status"] == "cancelled"
        assert frames[-1]["type"] == "closed"
        assert frames[-1]["reason"] == "host_draining"

    asyncio.run(test())


def test_a_backend_that_hangs_keeps_a_host_no_longer_than_it_has_time(root: Root) -> None:
    faults = Faults(ignore_stop=True, ignore_dispose=True, stop_delay=5.0, dispose_delay=5.0)

    async def test() -> None:
        deadlines = HostDeadlines(shutdown=0.2, goodbye=0.05)
        async with a_host(root.path, app(faults), deadlines=deadlines) as life:
            await start(life)
            with pytest.raises(ShutdownLate, match="did not end within"):
                await life.end()
            # What still runs may still write.
            with pytest.raises(HostRunning):
                RootLock.acquire(root.path)

    asyncio.run(test())


def test_a_backend_that_hangs_for_a_while_is_left_and_the_host_ends_in_order(root: Root) -> None:
    faults = Faults(ignore_stop=True, stop_error=RuntimeError("no"))

    async def test() -> None:
        async with a_host(root.path, app(faults), kernel_deadlines=SHORT) as life:
            await start(life)
            await life.end()
        assert root.of_type("turn/end")[0].data["reason"]["source"] == "host_shutdown"
        async with a_host(root.path, app()) as life:
            assert (await life.ask("turn.query", session_id="s1", turn_id="t1"))["status"] == "cancelled"

    asyncio.run(test())


def test_what_can_be_handed_over_is_finished_by_the_next_host(root: Root) -> None:
    def handing(*turns: Turn) -> App:
        return app_of(scripted_backend(turns, steps=True, composition=COMPOSITION))

    steps: list[Any] = [part for number in range(40) for part in (Tool("look", {"n": number}), Wait(0.02))]

    async def test() -> None:
        async with a_host(root.path, handing(steps)) as life:
            turn = await start(life)
            await submit(life, "m1")
            await life.end("handoff", 5.0)
        [pause] = root.of_type("handoff/pause")
        assert pause.data["host_epoch"] == life.host.host_epoch
        assert root.of_type("turn/end") == []
        async with a_host(root.path, handing([Tool("look"), "done"], "hi")) as life:
            stands = await life.ask("turn.query", session_id="s1", turn_id="t1")
            assert stands["run_id"] == pause.data["successor_run_id"] != turn["run_id"]
            assert stands["status"] != "paused"
            # The queue goes on behind it.
            await life.until(lambda: len(root.of_type("turn/end")) == 2)
        types = [event.type for event in root.events()]
        assert types.index("turn/end") < types.index("turn/admitted", types.index("handoff/pause"))
        assert root.of_type("turn/end")[0].data["reason"]["kind"] == "completed"

    asyncio.run(test())


def test_what_cannot_be_handed_over_is_stopped(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app(composition=COMPOSITION)) as life:
            await start(life)
            await life.end("handoff", 0.1)
        assert root.of_type("handoff/pause") == []
        assert root.of_type("turn/end")[0].data["reason"] == {"kind": "aborted", "source": "host_shutdown"}

    asyncio.run(test())


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_waits_for_an_answer_is_stopped_where_it_cannot_be_handed_over(root: Root, late: bool) -> None:
    """No answer is taken any more, and the host does not wait out its time for one."""
    ending = asyncio.Event()
    before: list[Any] = [Do(lambda _: ending.wait())] if late else []
    asking = app_of(
        scripted_backend([[*before, Question("Really?"), Tool("look")]], steps=True, composition=COMPOSITION)
    )

    async def test() -> None:
        async with a_host(root.path, asking) as life:
            await start(life)
            if not late:
                await life.until(lambda: bool(root.of_type("interaction/requested")))
            asyncio.get_running_loop().call_later(0.1, ending.set)
            async with asyncio.timeout(30.0):
                await life.end("handoff", 600.0)
        assert root.of_type("handoff/pause") == []
        assert root.of_type("turn/end")[0].data["reason"] == {"kind": "aborted", "source": "host_shutdown"}

    asyncio.run(test())


def test_a_host_ends_while_it_recovers(root: Root) -> None:
    message = {"content": [{"kind": "text", "text": "hi"}]}
    data: dict[str, Any] = {"turn_id": "t", "run_id": "r", "message_id": "m", "previous_root_turn_id": None}
    data |= {"execution": {"kind": "root"}, "input": message, "input_digest": digest_of(message)}
    root.store.append("s1", [Draft("turn/admitted", data)])

    async def test() -> None:
        slow = app(Faults(build_delay=30.0))
        async with a_host(root.path, slow, kernel_deadlines=SHORT, ready=False) as life:
            await life.until(lambda: bool(life.host._lanes))
            await life.end()
        assert life.states == ["recovering", "draining"]
        # It is the next host's: nobody has stopped it.
        assert root.of_type("turn/end", "turn/stop_requested") == []
        async with a_host(root.path, app()) as life:
            await life.until(lambda: len(root.of_type("run/settled")) == 1)
        assert root.of_type("turn/start")[0].data["run_id"] == "r"

    asyncio.run(test())


def test_a_successor_that_has_not_begun_is_the_next_hosts(root: Root) -> None:
    """Also where its host ends while it takes the turn up."""
    steps: list[Any] = [part for number in range(40) for part in (Tool("look", {"n": number}), Wait(0.02))]

    def handing(faults: Faults | None = None) -> App:
        return app_of(scripted_backend([steps], steps=True, composition=COMPOSITION, faults=faults))

    async def test() -> None:
        async with a_host(root.path, handing()) as life:
            await start(life)
            await life.end("handoff", 5.0)
        [pause] = root.of_type("handoff/pause")
        slow = handing(Faults(build_delay=30.0))
        async with a_host(root.path, slow, kernel_deadlines=SHORT, ready=False) as life:
            await life.until(lambda: any(lane.root is not None for lane in life.host._lanes.values()))
            await life.end()
        assert root.of_type("turn/end", "turn/stop_requested", "continuation/claim") == []
        [waits] = root.session().handoffs()
        assert (waits["handoff_id"], waits["state"]) == (pause.data["handoff_id"], "pending")

    asyncio.run(test())


def test_a_host_that_nobody_uses_ends_by_itself(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app(), idle=0.05) as life:
            await asyncio.wait_for(life.serving, 5.0)
        assert life.states[-1] == "draining"

    asyncio.run(test())


def test_a_host_that_has_something_to_do_does_not_end_by_itself(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app(), idle=0.1) as life:
            # Whoever asks is connected while he does, however long it takes.
            life.server.connections.add(life.connection)
            turn = await start(life)
            life.server.connections.clear()
            await asyncio.sleep(0.25)
            assert not life.serving.done()
            life.server.connections.add(life.connection)
            await life.ask("turn.stop", session_id="s1", turn_id="t1", run_id=turn["run_id"], stop_id="x")
            await asyncio.sleep(0.25)
            assert not life.serving.done()
            life.server.connections.clear()
            await asyncio.wait_for(life.serving, 5.0)

    asyncio.run(test())


def test_a_journal_that_fails_at_the_end_is_told_by_the_host(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:

            async def fails(*, source: str) -> None:
                raise JournalWriteError("the disk is full", errno=28, poisoned=False)

            monkeypatch.setattr(life.host.manager, "aclose", fails)
            with pytest.raises(JournalWriteError):
                await life.end()
            monkeypatch.undo()
            await life.host.manager.aclose()
        assert read_registration(root.path) is None

    asyncio.run(test())


def test_what_came_since_is_read_as_it_is_taken(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def next_of(events: Any) -> list[Event]:
        taken.append(len(there := _next_of(events)))
        return there

    monkeypatch.setattr("maka.runtime.host.host._next_of", next_of)
    monkeypatch.setattr("maka.runtime.host.host._MISSED", 2)
    monkeypatch.setattr("maka.runtime.host.host._MISSED_BYTES", 1_000)

    async def test() -> None:
        async with a_host(root.path, app()) as life:
            for number in range(6):
                await life.host.manager.rename("s1", "x" * 2_000 if number == 3 else f"name {number}")
            answered = asyncio.Event()
            caller = Caller(life.connection, "tests", "tests", answered)
            await life.host.subscribe(SubscriptionOpen(session_id="s1", since=0), caller)
            # The first are read with the snapshot, whoever cannot be read is refused.
            assert taken == [2]
            answered.set()
            await life.until(lambda: len(life.connection.frames) == 6)
            assert [frame["event"]["seq"] for frame in life.connection.frames] == [1, 2, 3, 4, 5, 6]
            await life.until(lambda: taken[-1] == 0)
            # By their number, and by their bytes.
            assert taken == [2, 2, 2, 0]
            monkeypatch.setattr("maka.runtime.host.host._MISSED", 500)
            assert len(await life.host._between("s1", 0, 6)()) == 4

    asyncio.run(test())


def test_who_asked_for_a_turn_is_on_record(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            await start(life, "hi")
        assert root.admissions()[0]["client"] == "tests"

    asyncio.run(test())


@pytest.mark.parametrize("left", [None, "{}"])
def test_a_registration_that_is_taken_away_comes_again(
    root: Root, monkeypatch: pytest.MonkeyPatch, left: str | None
) -> None:
    async def test() -> None:
        monkeypatch.setattr("maka.runtime.host.host._LOOK", 0.02)
        async with a_host(root.path, app()) as life:
            (root.path / "host.json").unlink()
            if left is not None:
                (root.path / "host.json").write_text(left)
            while (found := read_registration(root.path)) is None:
                await asyncio.sleep(0.01)
            assert (found.host_epoch, found.state) == (life.host.host_epoch, "ready")

    asyncio.run(test())


def test_a_host_tells_for_how_many_seconds_it_is_up(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            # Whatever is done to the clock of the wall.
            life.host._started -= 100_000
            life.host._begun -= 3.5
            assert (await life.ask("host.status"))["uptime"] == 3

    asyncio.run(test())


async def lanes(life: Life) -> list[str]:
    """Sessions that the host keeps something of."""
    await asyncio.sleep(0.05)
    gc.collect()
    return sorted(life.host._lanes)


def test_nothing_is_kept_of_a_session_in_which_nothing_goes_on(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            for number in range(5):
                root.create(session_id := f"x{number}")
                await start(life, "hi", session_id=session_id)
                opened = await life.ask("subscription.open", session_id=session_id)
                await life.until(lambda session_id=session_id: over(life, session_id))  # type: ignore[misc]
                assert session_id in await lanes(life)
                await life.ask("subscription.close", subscription_id=opened["subscription_id"])
            assert await lanes(life) == []
            turn = await start(life)
            lane = weakref.ref(life.host.lane("s1"))
            assert await lanes(life) == ["s1"]
            assert life.host.lane("s1") is lane()
            await life.ask("turn.stop", session_id="s1", turn_id="t1", run_id=turn["run_id"], stop_id="x")
            assert await lanes(life) == []
            assert lane() is None

    asyncio.run(test())


def over(life: Life, session_id: str) -> bool:
    return not life.host.manager.status(session_id).turns


def test_what_is_to_be_tried_again_is_kept(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            life.host.lane("s1")._try_again()
            assert await lanes(life) == ["s1"]
            assert life.host._in_use()

    asyncio.run(test())


def test_the_numbers_of_projections_go_on_although_nobody_watched_for_a_while(root: Root) -> None:
    async def test() -> None:
        async with a_host(root.path, app()) as life:
            numbers = []
            for number in range(3):
                opened = await life.ask("subscription.open", session_id="s1")
                numbers.append(opened["snapshot"]["projection_revision"])
                await life.ask("session.update", session_id="s1", request_id=str(number), patch={"name": str(number)})
                await life.host.lane("s1")._broadcast.settled()
                await life.ask("subscription.close", subscription_id=opened["subscription_id"])
                assert await lanes(life) == []
            assert numbers == [1, 3, 5]

    asyncio.run(test())
