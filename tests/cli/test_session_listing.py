"""`maka session list`, `show` and `archive`: the same with a host and without one, and what runs where one does."""

import asyncio
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.cli import documents, through
from maka.runtime.host import HostError, connect
from support.builder import Builder
from support.command import COMMAND
from support.fake_host import FakeHost, play
from support.spoken import Hosted

Run = Callable[..., Any]


def session(root: Path, session_id: str, journal: Builder) -> str:
    directory = root / "sessions" / session_id
    directory.mkdir(parents=True, mode=0o700)
    for place in (root, root / "sessions"):
        place.chmod(0o700)
    (directory / "journal.jsonl").write_bytes(journal.raw())
    (directory / "journal.jsonl").chmod(0o600)
    return session_id


@pytest.fixture
def done(tmp_path: Path) -> str:
    return session(tmp_path / "root", "done", Builder(session_id="done").plain_turn())


def rows(ran: Any) -> dict[str, Any]:
    assert (ran.code, ran.err) == (0, "")
    return {row["session_id"]: row for row in ran.json["sessions"]}


def test_it_lists_the_same_with_a_host_and_without(maka_: Run, done: str, tmp_path: Path) -> None:
    alone = rows(maka_("session", "list", "--json"))
    assert (alone[done]["running"], alone[done]["waiting"]) == ([], [])
    assert {key: value for key, value in alone[done].items() if key not in ("running", "waiting")} == rows(
        maka_("journal", "list", "--json")
    )[done]
    with Hosted(tmp_path / "root"):
        there = rows(maka_("session", "list", "--json"))
        assert there.keys() == alone.keys()
        assert there[done].keys() == alone[done].keys()
        assert (there[done]["turns"], there[done]["running"]) == (alone[done]["turns"], [])
        assert there[done]["verdict"] == alone[done]["verdict"] == "healthy"
        assert maka_("session", "list").out.split("\n")[1].startswith("done  ")


def test_what_runs_is_marked(maka_: Run, hosted: Hosted) -> None:
    with subprocess.Popen([*COMMAND, "run", "for ever"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stdout.read(7) == b"I wait."
        [row] = maka_("session", "list", "--json").json["sessions"]
        [turn_id] = row["running"]
        assert maka.inspect(row["session_id"], root=hosted.root).turns()[0]["turn_id"] == turn_id
        assert "  running" in maka_("session", "list").out
        running.terminate()


def test_what_waits_for_a_person_and_what_is_queued_is_shown(maka_: Run, hosted: Hosted) -> None:
    async def scenario() -> None:
        async with connect(hosted.root) as client:
            session_id = await client.create_session()
            await client.start_turn(session_id, "ask")
            while not (row := (await client.list_sessions())[0])["waiting"]:
                await asyncio.sleep(0.01)
            assert row["waiting"] == row["running"]
            await client.submit_message(session_id, "and then", placement="next_turn")
            listed = (await asyncio.to_thread(maka_, "session", "list")).out.splitlines()[1]
            assert re.search(r"  in use +1  .*  waits for an answer, 1 queued  “ask”$", listed)
            [active] = (await client.status())["active"]
            assert (active["waiting"], active["queued"]) == (True, 1)
            shown = (await asyncio.to_thread(maka_, "host", "status")).out
            assert re.search(rf"{active['turn_id']}  waits for an answer +1\n", shown)
            assert re.search(r"^other clients +1$", shown, re.MULTILINE)
            assert len({row.index(row.split()[-1]) for row in shown.splitlines()[1:5]}) == 1
            # Without the host its journal tells as much.
            [row] = documents.under_way_in(hosted.root, None, none_runs=False)
            assert (row["waiting"], row["queued"]) == ([active["turn_id"]], 1)

    asyncio.run(scenario())


def test_a_session_without_a_name_is_shown_with_its_first_words(maka_: Run, tmp_path: Path) -> None:
    long = "Please  look\nat " + "all of " * 20
    session(tmp_path / "root", "a", Builder(session_id="a").plain_turn(long))
    session(tmp_path / "root", "b", Builder(session_id="b", name="Named").plain_turn(long))
    session(tmp_path / "root", "c", Builder(session_id="c").plain_turn("x" * 9000))
    named = [row.split("Z")[-1].strip() for row in maka_("session", "list").out.splitlines()[1:]]
    assert named == ["“Please look at all of all of all of all…”", "Named", ""]


def test_a_root_without_sessions(maka_: Run, tmp_path: Path) -> None:
    ran = maka_("session", "list")
    assert (ran.code, ran.out) == (0, "")
    assert f"there is no session under {tmp_path / 'root'}" in ran.err


def test_it_is_shown_as_its_journal_is(maka_: Run, done: str) -> None:
    assert maka_("session", "show", done) == maka_("journal", "show", done)
    assert maka_("session", "show", done, "--json") == maka_("journal", "show", done, "--json")
    assert maka_("session", "show", "nobody").code == 2


@pytest.mark.parametrize("host", [False, True])
def test_it_is_put_away_and_taken_back(maka_: Run, done: str, tmp_path: Path, host: bool) -> None:
    root = tmp_path / "root"
    manager = Hosted(root) if host else None
    if manager is not None:
        manager.__enter__()
    try:
        ran = maka_("session", "archive", done)
        assert (ran.code, ran.err) == (0, "")
        assert "`maka session archive done --undo`" in ran.out
        assert maka.inspect(done, root=root).settings()["archived"] is True
        if host:
            refused = maka_("run", "Hello", "--session", done)
            assert (refused.code, refused.out) == (2, "")
            assert f"`maka session archive {done} --undo`" in refused.err
        doc = maka_("session", "archive", done, "--undo", "--json").json
        assert (doc["session_id"], doc["archived"]) == (done, False)
        assert maka.inspect(done, root=root).settings()["archived"] is False
        assert doc["revision"] == maka.inspect(done, root=root).events[-1].seq
        assert maka_("session", "archive", "nobody").code == 2
    finally:
        if manager is not None:
            manager.end()


def test_beside_a_host_that_tells_nothing_the_journals_are_read(
    maka_: Run, done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through, "_GLANCE", 0.2)

    def refused(_: object) -> None:
        raise HostError("host_not_ready", "the host is recovering")

    async def scenario() -> None:
        async with FakeHost(tmp_path / "root") as host:
            host.answers["session.list"] = refused
            for why in ("tells nothing now (the host is recovering)", "does not answer"):
                ran = await asyncio.to_thread(maka_, "session", "list", "--json")
                assert ran.code == 0
                [row] = ran.json["sessions"]
                assert (row["session_id"], row["running"]) == (done, None)
                [said] = ran.err.splitlines()
                assert said.startswith(
                    f"maka: the host of {tmp_path / 'root'} (process {host.pid}) {why}, so what runs"
                )
                assert (await asyncio.to_thread(maka_, "session", "list")).out.split("\n")[1].startswith("done  ")
                assert (await asyncio.to_thread(maka_, "session", "show", done)).code == 0
                host.silent = True
            host.silent = False
            host.say("draining")
            host.answers["session.list"] = lambda _: {"sessions": [{**row, "running": ["t"]}], "next": None}
            ran = await asyncio.to_thread(maka_, "session", "list", "--json")
            assert (ran.code, ran.err, ran.json["sessions"][0]["running"]) == (0, "", ["t"])

    play(scenario())
