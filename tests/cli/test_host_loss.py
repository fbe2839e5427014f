"""A host that dies, hangs or ends under a command: that is said at once, and in the end how the turn stands."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.cli.chatting import Chat
from maka.cli.console import Console
from maka.cli.typed import Typed
from maka.cli.watching import Watching
from support.command import COMMAND, here
from support.fake_host import FakeHost, play
from support.spoken import Terminal, shown, started

Run = Callable[..., Any]


class Process:
    """A host as a process of its own, which dies with the test."""

    def __init__(self, root: Path) -> None:
        words = [*COMMAND, "host", "start", "--foreground", "--app", "support.spoken:made"]
        self.host = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while here("host", "status").code != 0:
            assert self.host.poll() is None
        self.pid = self.host.pid

    def send(self, number: int) -> None:
        self.host.send_signal(number)
        if number == signal.SIGKILL:
            self.host.wait()


@pytest.fixture
def alone(maka_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    host = Process(tmp_path / "root")
    try:
        yield host
    finally:
        host.host.send_signal(signal.SIGCONT)
        host.host.kill()
        host.host.wait()
        maka_("host", "stop")


def test_a_killed_host_is_missed_at_once_and_the_next_runs_the_same_app(alone: Process) -> None:
    with started("run", "for ever") as running:
        shown(running, "I wait. ")
        alone.send(signal.SIGKILL)
        _, err = running.communicate(timeout=30)
    said = err.decode()
    assert running.returncode == 1
    assert f"the host (process {alone.pid}) is gone; the next one is started" in said
    session = said.split()[1]
    resume = f"`maka session resume {session} --app MODULE:OBJECT`"
    assert f"the turn ended as `interrupted`; go on where it was cut off with {resume}, or say" in said
    assert here("host", "status", "--json").json["app"] == "support.spoken:made"


def test_where_none_may_be_started_it_is_said_how_the_turn_stands(alone: Process) -> None:
    run = "app.run(['run', 'for ever', '--no-start'])"
    code = f"import sys; from maka.cli import app, reaching; reaching.PATIENCE = 0.5; sys.exit({run})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        shown(running, "I wait. ")
        alone.send(signal.SIGKILL)
        _, err = running.communicate(timeout=30)
    said = err.decode()
    assert running.returncode == 1
    assert f"the host (process {alone.pid}) is gone; the next one is waited for, for 0.5 s" in said
    assert "the turn ended as `interrupted`, as the journal says; go on where it was cut off with" in said


def test_ctrl_c_where_the_host_does_not_answer_is_told_and_a_second_leaves(alone: Process) -> None:
    with Terminal("run", "for ever") as running:
        running.until(r"I wait\. ")
        alone.send(signal.SIGSTOP)
        running.type("\x03")
        running.until(rf"asking the host \(process {alone.pid}\) to stop the turn; it has not answered yet")
        running.type("\x03")
        running.until("left at once; .*`maka session show .*` shows how the turn stands")
        assert running.end() == 130


def test_ctrl_c_where_the_host_is_dead_says_how_the_turn_stands(alone: Process) -> None:
    with Terminal("run", "for ever", "--no-start") as running:
        running.until(r"I wait\. ")
        alone.send(signal.SIGKILL)
        running.until("is gone; the next one is waited for")
        running.type("\x03")
        running.until("the turn ended as `interrupted`, as the journal says; go on")
        assert running.end() == 130


def test_a_call_of_which_nobody_knows_what_came_of_it_is_named(alone: Process) -> None:
    with started("run", "hang") as running:
        shown(running, "→ hang")
        alone.send(signal.SIGKILL)
        _, err = running.communicate(timeout=30)
    assert "of a call nobody knows what came of it" in err.decode()
    assert "`maka session settle " in err.decode()


def test_a_conversation_hears_of_the_end_of_its_host_and_goes_on_with_the_next(alone: Process, maka_: Run) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("Hello\n")
        chat.until(r"You said Hello\.")
        chat.until("› ")
        alone.send(signal.SIGTERM)
        chat.until(rf"the host \(process {alone.pid}\) has ended; what is typed now goes to the next one")
        chat.type("Again\n")
        chat.until(r"You said Again\.")
        chat.until("› ")
        assert maka_("host", "stop").code == 0
        chat.until("has ended; what is typed now")
        chat.type("/quit\n")
        assert chat.end() == 0
    assert maka_("host", "status").code == 1


def test_where_none_may_be_started_a_conversation_waits_for_one_and_can_be_left(alone: Process) -> None:
    with Terminal("chat", "--no-start") as chat:
        chat.until("› ")
        alone.send(signal.SIGKILL)
        chat.until("is gone; the next one is waited for: `maka host start` starts it")
        chat.type("Hello\n/quit\n")
        assert chat.end() == 0
        assert "not sent: Hello" in chat.shown


def test_a_conversation_tells_what_became_of_a_turn_whose_host_was_killed(alone: Process) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("for ever\n")
        chat.until(r"I wait\. ")
        alone.send(signal.SIGKILL)
        chat.until("is gone; the next one is started")
        chat.until("the turn was cut off")
        chat.until("› ")
        chat.type("Hello\n")
        chat.until(r"You said Hello\.")
        assert chat.shown.count("I wait.") == 1


def test_lines_of_a_pipe_outlive_their_host(alone: Process) -> None:
    words = [*COMMAND, "chat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
        assert chat.stdin is not None
        chat.stdin.write(b"for ever\nHello\nAgain\n")
        chat.stdin.flush()
        shown(chat, "I wait. ")
        alone.send(signal.SIGKILL)
        out, err = chat.communicate(timeout=30)
    assert chat.returncode == 0, err
    assert out.endswith(b"You said Hello.\n\nYou said Again.\n")
    assert b"the turn was cut off" in err


def test_a_conversation_whose_host_hangs_can_be_left(alone: Process) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("for ever\n")
        chat.until(r"I wait\. ")
        alone.send(signal.SIGSTOP)
        chat.type("\x03")
        chat.until(rf"asking the host \(process {alone.pid}\) to stop the turn; it has not answered yet")
        chat.type("\x03")
        chat.until("left; .* has not answered")
        # Much sooner than the host would be given up.
        assert chat.process.wait(5) == 130


def test_what_a_host_that_hangs_may_have_taken_is_not_said_to_be_lost(alone: Process) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        alone.send(signal.SIGSTOP)
        chat.type("Hello\n/quit\n")
        chat.until("it is not known whether a host has taken 'Hello'; `maka host status` shows whether one runs")
        assert chat.process.wait(5) == 0


def test_a_session_that_was_deleted_meanwhile_does_not_come_again(alone: Process, maka_: Run, tmp_path: Path) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("Hello\n")
        chat.until(r"You said Hello\.")
        chat.until("› ")
        alone.send(signal.SIGTERM)
        chat.until("has ended; what is typed now goes to the next one")
        [session] = (tmp_path / "root" / "sessions").iterdir()
        session.rename(tmp_path / "away")
        chat.type("Again\n")
        chat.until("not sent: Again")
        assert chat.end() == 2
    assert f"session {session.name} is gone: it was deleted or moved away; `maka session list` shows" in chat.shown
    assert not session.exists()


def test_what_is_sent_again_and_has_been_taken_is_not_waited_for(tmp_path: Path) -> None:
    at = {"turn_id": "t", "run_id": "r"}
    shot: dict[str, Any] = {
        "position": 3, "root_turn": None, "queue": {"revision": 0, "steering": [], "followup": []},
        "interactions": {"pending": []},
    }  # fmt: skip

    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            host.snapshot = shot
            host.answers["turn.message.submit"] = lambda _: {"disposition": "followup", "revision": 4}
            async with maka.connect(tmp_path) as client:
                console = Console(None, None, {})
                chat = Chat("s", console, Typed(None), None, "s")
                async with Watching(client, "s", console, None, ask=lambda form: None) as watch:
                    told: dict[str, dict[str, Any]] = {
                        "turn/admitted": {"message_id": "m"},
                        "user/message": {"message_id": "m"},
                    }
                    for seq, (type_, data) in enumerate([*told.items(), ("turn/end", {"reason": {"kind": "x"}})], 4):
                        [watched] = host.watched
                        event = {"seq": seq, "ts": 0, "type": type_, "data": {**at, **data}}
                        host.push(watched, "event", event=event)
                    await watch.until(lambda: "t" in watch.ended)
                    await chat._submit(watch, "m", "Hello")
                    assert watch.idle

    play(scenario())
