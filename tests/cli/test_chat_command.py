"""`maka chat`: what is typed in a terminal is sent, steers, answers; what a turn does is seen; the host lives on."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import maka
from support import documents
from support.command import COMMAND
from support.documents import HOST
from support.foreign_lines import CLAUDE, claude
from support.spoken import Hosted, Terminal

Run = Callable[..., Any]


def piped(text: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, "chat", *words], input=text, capture_output=True, text=True, check=False, timeout=60
    )


def test_lines_of_a_pipe_are_said_one_after_the_other(maka_: Run, hosted: Hosted) -> None:
    ran = piped("Hello\nask\n1\nTwo\n/nonsense\n//look\nlook", "--name", "talk")
    assert ran.returncode == 0, ran.stderr
    places = [
        ran.stdout.index(text) for text in ("You said Hello.", "Which colour?", "How many?", "You want ['Red', 'Two']")
    ]
    assert places == sorted(places)
    assert "You said /look." in ran.stdout
    assert ran.stdout.endswith("I have looked.\n") or "I have looked." in ran.stdout
    assert "there is no /nonsense" in ran.stderr
    assert "› " not in ran.stdout
    [row] = maka_("session", "list", "--json").json["sessions"]
    assert (row["name"], row["turns"]) == ("talk", 4)


def test_a_session_goes_on_by_the_backend_that_is_named(maka_: Run, hosted: Hosted, tmp_path: Path) -> None:
    path = tmp_path / f"{CLAUDE}.jsonl"
    path.write_bytes(claude())
    maka_("journal", "import", path).checked()
    ran = piped("Hello\n", "--session", CLAUDE, "--backend", "s")
    assert (ran.returncode, "You said Hello." in ran.stdout) == (0, True), ran.stderr
    assert maka.inspect(CLAUDE, root=hosted.root).settings()["backend"] == "s"


def test_a_conversation_goes_on_where_it_was(maka_: Run, hosted: Hosted) -> None:
    session = maka_("run", "Hello", "--json").json["session_id"]
    ran = piped("", "--session", session)
    assert (ran.returncode, ran.stdout) == (0, "user\n  Hello\n\nassistant\n  You said Hello.\n")
    ran = piped("Again\n", "--session", session)
    assert ran.stdout.endswith("\n\nYou said Again.\n")


def test_a_line_while_a_turn_runs_steers_it(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("steps\n")
        chat.until("→ step")
        chat.type("be quick\n")
        chat.until("told this between two of its steps")
        chat.until(r"Done\.")
        chat.until("› ")
        chat.type("\x04")
        assert chat.end() == 0
    [row] = maka_("session", "list", "--json").json["sessions"]
    messages = maka.inspect(row["session_id"], root=hosted.root).messages()
    assert [message["content"][0]["text"] for message in messages if message["role"] == "user"] == ["steps", "be quick"]
    assert row["turns"] == 1


def test_ctrl_c_stops_the_turn_and_then_leaves(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("for ever\n")
        chat.until(r"I wait\. ")
        chat.type("\x03")
        chat.until("the turn was stopped")
        chat.until("› ")
        chat.type("Hello\n")
        chat.until(r"You said Hello\.")
        chat.until("› ")
        chat.type("\x03")
        assert chat.end() == 0
    assert maka_("host", "status").code == 0


def test_what_waits_is_seen_and_a_turn_is_left_to_the_host(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("/help\n")
        chat.until("/quit +leaves")
        chat.type("/stop\n")
        chat.until("nothing runs")
        chat.type("/queue\n")
        chat.until("nothing waits")
        chat.type("for ever\n")
        chat.until(r"I wait\. ")
        chat.type("and this\n")
        chat.until("told this between")
        chat.type("/queue\n")
        chat.until("steering +and this")
        chat.type("/quit\n")
        chat.until("the turn goes on in the host")
        assert chat.end() == 0
    [row] = maka_("session", "list", "--json").json["sessions"]
    assert len(row["running"]) == 1


def test_what_one_asks_another_may_answer(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as first:
        first.until("› ")
        first.type("leave\n")
        first.until("leave its sandbox")
        [session] = [row["session_id"] for row in maka_("session", "list", "--json").json["sessions"]]
        assert "allow" in piped("y\n", "--session", session).stdout
        first.until("allow")
        first.until("› ")
        first.type("Hello\n")
        first.until(r"You said Hello\.")


def test_how_a_turn_ended_is_told(maka_: Run, hosted: Hosted) -> None:
    ran = piped("fail\nlong\n")
    assert ran.returncode == 0
    assert "the turn has failed (there is no credit left)" in ran.stderr
    assert "the answer is as long as it may be" in ran.stderr


def test_the_next_host_goes_on_with_it(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("Hello\n")
        chat.until(r"You said Hello\.")
        chat.until("› ")
        hosted.end()
        chat.type("Again\n")
        with Hosted(hosted.root):
            chat.until(r"You said Again\.")
            chat.until("› ")
            chat.type("/quit\n")
            assert chat.end() == 0
    [row] = maka_("session", "list", "--json").json["sessions"]
    assert row["turns"] == 2


def test_sigterm_leaves_the_turn_to_the_host(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("for ever\n")
        chat.until(r"I wait\. ")
        chat.process.terminate()
        assert chat.end() == 143
    assert len(maka_("host", "status", "--json").json["active"]) == 1


def test_a_line_of_a_pipe_is_no_answer_unless_it_is_offered(maka_: Run, hosted: Hosted) -> None:
    ran = piped("may I\nHello\nAgain\n")
    session = ran.stderr.split()[1].rstrip(";")
    assert ran.returncode == 1
    assert "not sent, and no answer that is offered: Hello\n" in ran.stderr
    waits = 'the turn waits for an answer: may `rm` run with {"path": "/"}? (it removes); '
    assert f"{waits}`maka chat --session {session}` in a terminal takes the answer\n" in ran.stderr
    assert [row["turns"] for row in maka_("session", "list", "--json").json["sessions"]] == [1]
    # One that ends there has not said all that it could either.
    ran = piped("", "--session", session)
    assert ran.returncode == 1
    assert waits in ran.stderr
    ran = piped("y\nHello\n", "--session", session)
    assert ran.returncode == 0
    assert ran.stdout.endswith("allow\n\nYou said Hello.\n")


def test_what_is_met_is_told_in_its_order_with_calls_and_results(maka_: Run, hosted: Hosted) -> None:
    session = maka_("run", "look", "--json").json["session_id"]
    with Terminal("run", "may I", "--session", session) as asking:
        asking.until(r"may `rm` run")
        with Terminal("chat", "--session", session) as chat:
            shown = chat.until(r"may `rm` run with \{\"path\": \"/\"\}\?(.|\n)*› ")
            told = ["session " + session, "user\n  look", "→ look", "It is blue.", "I have looked.", "user\n  may I"]
            told.append("? may `rm` run")
            places = [shown.index(text) for text in told]
            assert places == sorted(places)
            chat.type("y\n")
            chat.until("allow")
            asking.until("allow")
            assert asking.end() == 0
            chat.until("› ")
            chat.type("/quit\n")
            assert chat.end() == 0


def test_which_message_gets_a_turn_of_its_own_is_said(maka_: Run, hosted: Hosted) -> None:
    with Terminal("chat") as chat:
        chat.until("› ")
        chat.type("for ever\n")
        chat.until(r"I wait\. ")
        chat.type("Hello\n")
        chat.until("told this between")
        chat.type("\x03")
        chat.until("the turn was stopped")
        chat.until("a turn of its own begins for: Hello")
        chat.until(r"You said Hello\.")
        chat.until("› ")
        chat.type("\x04")
        assert chat.end() == 0


def test_the_document_has_its_exit_codes(maka_: Run) -> None:
    told = [row[0] for row in documents.table(HOST, "exit code", "the conversation")]
    assert told == ["0", "1", "2", "130, 143"]
    helped = " ".join(maka_("chat", "--help").out.split())
    said = helped[helped.index("Exit code:") :]
    assert all(code in said for code in ", ".join(told).split(", "))
