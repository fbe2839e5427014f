"""What can be done next with a session, as its read models tell it."""

from collections.abc import Callable
from pathlib import Path
from shlex import shlex, split
from typing import Any

import pytest

from maka.cli.onward import Words, steps, words_of
from support.builder import Builder
from support.orders import Orders

RUN = {"run_id": "r1", "turn_id": "t1", "status": "failed"}
TURN = {"turn_id": "t1", "turn": 1, "status": "interrupted"}
DOC: dict[str, Any] = {
    "verdict": "healthy", "writer": None, "settings": {}, "runs": [RUN], "turns": [TURN], "continuations": [],
    "handoffs": [], "findings": [],
}  # fmt: skip
CALL = {
    "call_id": "c1", "name": "order", "turn_id": "t1", "run_id": "r1", "call_seq": 7, "operation_id": "o1",
    "recovery": "never",
}  # fmt: skip
GOES_ON = "maka session resume s"
SETTLE = ["maka session settle s --call c1 --ok", "maka session settle s --call c1 --error 'it did not happen'"]


WORDS = Words("s", lambda: "")


def told(
    doc: dict[str, Any], *unknown: dict[str, Any], newest: str | None = "r1", lost: bool = False
) -> list[str | None]:
    return [step["command"] for step in steps(doc, unknown, newest, WORDS, lost=lost)]


def claim(state: str, source: str = "r1", target: str = "r2") -> dict[str, Any]:
    return {"claim_id": "k1", "state": state, "source": {"run_id": source}, "target": {"run_id": target}}


def test_the_session_is_named_as_it_was_typed() -> None:
    assert words_of("s", None) == "s"
    assert words_of("a b/journal.jsonl", "my root") == "'a b/journal.jsonl' --root 'my root'"
    [step] = steps(DOC, [], "r1", Words("s --root x", lambda: " --app a:b"))
    assert step == {
        "command": "maka session resume s --root x --app a:b",
        "why": "turn 1 was cut off; this goes on from there",
    }


@pytest.mark.parametrize(
    ("status", "run", "expected"),
    [
        ("interrupted", "failed", [GOES_ON]),
        ("failed", "failed", [GOES_ON]),
        ("aborted", "cancelled", [GOES_ON]),
        ("blocked", "failed", [GOES_ON]),
        ("step_limit", "failed", [GOES_ON]),
        ("completed", "completed", []),
        ("max_tokens", "completed", []),
    ],
)
def test_the_newest_turn_goes_on_unless_it_is_done(status: str, run: str, expected: list[str]) -> None:
    assert told({**DOC, "turns": [{**TURN, "status": status}], "runs": [{**RUN, "status": run}]}) == expected


HANDOFF = {"handoff_id": "h 1", "run_id": "r1", "turn_id": "t1", "successor_run_id": "r2", "state": "pending"}
HANDED = {
    **DOC, "runs": [{**RUN, "status": "handed_off"}], "turns": [{**TURN, "status": "paused"}], "handoffs": [HANDOFF],
}  # fmt: skip
GIVE_UP = "maka session settle s --handoff 'h 1'"


@pytest.mark.parametrize("state", ["pending", "claimed"])
def test_a_turn_that_waits_for_its_successor_goes_on_or_is_given_up(state: str) -> None:
    doc = {**HANDED, "handoffs": [{**HANDOFF, "state": state}]}
    why = "turn 1 was handed over and waits for run r2; let that finish it, or give the handoff up"
    assert steps(doc, [], "r1", WORDS) == [{"command": GOES_ON, "why": why}, {"command": GIVE_UP, "why": why}]


def test_a_handoff_that_cannot_be_resumed_is_given_up() -> None:
    for doc, lost, why in (
        (HANDED, True, "lines of the journal are lost"),
        ({**HANDED, "settings": {"archived": True}}, False, "the session is archived"),
    ):
        [step] = steps(doc, [], "r1", WORDS, lost=lost)
        assert (step["command"], why in str(step["why"])) == (GIVE_UP, True)


def test_a_handoff_of_a_run_whose_header_is_lost_is_given_up() -> None:
    doc = {**HANDED, "runs": [{**HANDED["runs"][0], "invocation_id": ""}]}
    [step] = steps(doc, [], "r1", WORDS)
    assert (step["command"], "the header of its run is lost" in str(step["why"])) == (GIVE_UP, True)
    claimed = {**doc, "continuations": [claim("settled", "r0", "r1")]}
    assert told(claimed) == [GOES_ON, GIVE_UP], "its claim says what it was set up with"


def test_a_handoff_whose_ids_are_taken_is_left_behind_in_a_fork() -> None:
    [step] = steps({**HANDED, "findings": [{"code": "handoff_stuck"}]}, [], "r1", WORDS)
    assert (step["command"], "fork the session behind" in str(step["why"])) == (None, True)


def test_nothing_goes_on_from_a_run_whose_header_is_lost() -> None:
    [step] = steps({**DOC, "runs": [{**RUN, "invocation_id": ""}]}, [], "r1", WORDS)
    assert step["command"] is None
    assert "the header of its run is lost" in str(step["why"])
    assert "send a message" in str(step["why"])


def test_a_handoff_that_is_over_waits_for_nobody() -> None:
    for state in ("continued", "abandoned"):
        assert told({**HANDED, "handoffs": [{**HANDOFF, "state": state}]}) == []
    stopped = {**HANDED, "turns": [{**TURN, "status": "aborted"}]}
    assert told(stopped) == [], "a repair ends it, because the turn was asked to stop"
    assert told({**HANDED, "writer": {"pid": 1}}) == []
    assert told({**HANDED, "verdict": "damaged"}) == []


def test_a_limit_of_steps_is_given_again() -> None:
    [step] = steps({**DOC, "turns": [{**TURN, "status": "step_limit"}]}, [], "r1", WORDS)
    assert step["why"] == "turn 1 met its limit of steps; this goes on from there with as many steps again"


def test_nothing_goes_on_that_is_archived_older_in_use_or_damaged() -> None:
    assert told({**DOC, "settings": {"archived": True}}) == []
    assert told(DOC, newest="r9") == []
    assert told(DOC, newest=None) == []
    assert told({**DOC, "writer": {"pid": 1}}, CALL) == []
    assert told({**DOC, "verdict": "damaged"}, CALL) == []
    assert told({**DOC, "verdict": "interrupted"}) == [GOES_ON]


def test_a_call_of_unknown_outcome_comes_before_its_run_goes_on() -> None:
    assert told(DOC, CALL) == SETTLE
    assert told(DOC, {**CALL, "run_id": "r0"}) == [*SETTLE, GOES_ON], "another run's is not in the way"
    older = {**DOC, "runs": [RUN, {**RUN, "run_id": "r2"}], "continuations": [claim("settled")]}
    assert told(older, CALL, newest="r2") == SETTLE, "that of a run that it goes back to is"
    assert told(DOC, {**CALL, "operation_id": None}) == [], "no outcome can be stated where the dispatch was lost"


@pytest.mark.parametrize("source", [None, [], {}, 5, "r2"])
def test_a_claim_may_name_anything_as_its_source(source: Any) -> None:
    claimed = {**claim("settled"), "source": {"run_id": source}}
    doc = {**DOC, "runs": [{**RUN, "run_id": "r2"}], "continuations": [claimed]}
    assert told(doc, CALL, newest="r2") == [*SETTLE, GOES_ON]


def test_what_the_tool_declares_is_another_way() -> None:
    assert told(DOC, {**CALL, "recovery": "reconcile"}) == [GOES_ON, *SETTLE]
    assert told(DOC, {**CALL, "recovery": "read_only"}) == [f"{GOES_ON} --rerun read_only", *SETTLE]
    assert told(DOC, {**CALL, "recovery": "idempotent", "run_id": "r0"}) == [*SETTLE, GOES_ON]


def test_calls_of_one_name_are_told_apart_by_their_operation() -> None:
    assert told(DOC, CALL, {**CALL, "operation_id": "o 2"}) == [
        "maka session settle s --call o1 --ok",
        "maka session settle s --call o1 --error 'it did not happen'",
        "maka session settle s --call 'o 2' --ok",
        "maka session settle s --call 'o 2' --error 'it did not happen'",
    ]


def test_a_claim_that_is_not_settled_comes_first() -> None:
    assert told({**DOC, "continuations": [claim("started_indeterminate")]}) == ["maka session settle s --claim k1"]
    assert told({**DOC, "continuations": [claim("repair_required")]}) == [GOES_ON]
    assert told({**DOC, "continuations": [claim("repair_required")]}, {**CALL, "run_id": "r0"}) == [GOES_ON, *SETTLE]


def test_what_would_park_a_claims_run_comes_in_its_place() -> None:
    doc = {**DOC, "runs": [RUN, {**RUN, "run_id": "r2"}], "continuations": [claim("repair_required")]}
    for run_id in ("r1", "r2"):
        assert told(doc, {**CALL, "run_id": run_id}, newest="r2") == SETTLE
    assert told(doc, {**CALL, "recovery": "reconcile", "run_id": "r2"}, newest="r2") == [GOES_ON, *SETTLE]


def test_where_the_newest_run_is_claimed_the_run_that_came_of_it_goes_on() -> None:
    def claimed(status: str, *more: dict[str, Any]) -> dict[str, Any]:
        runs = [{**RUN, "run_id": "r2", "turn_id": "t2", "status": status}, RUN]
        turns = [TURN, {"turn_id": "t2", "turn": 2, "status": "step_limit"}]
        return {**DOC, "runs": runs, "turns": turns, "continuations": [claim("settled"), *more]}

    assert steps(claimed("failed"), [], "r1", WORDS) == [
        {
            "command": "maka session resume s --run r2",
            "why": "turn 2 met its limit of steps; this goes on from there with as many steps again",
        }
    ]
    assert told(claimed("completed")) == [], "nothing needs to go on"
    assert told(claimed("completed"), lost=True) == []
    assert told(claimed("running")) == []
    [step] = steps(claimed("failed", claim("settled", "r2", "r3")), [], "r1", WORDS)
    assert step == {
        "command": None,
        "why": "turn 1 was cut off, and the run that was to go on from there never began: "
        "send a message, with `maka run --session` or in your program (`manager.send`)",
    }
    assert told(claimed("failed", claim("settled", "r2", "r1"))) == [GOES_ON], "it comes back to itself"


def test_where_lines_are_lost_only_a_message_goes_on() -> None:
    [step] = steps(DOC, [], "r1", WORDS, lost=True)
    assert step["command"] is None
    assert step["why"] == (
        "turn 1 was cut off, and lines of the journal are lost, so no run goes on from there: "
        "send a message, with `maka run --session` or in your program (`manager.send`)"
    )
    assert told(DOC, {**CALL, "recovery": "read_only"}, lost=True) == [*SETTLE, None], "it is not in a message's way"
    assert told(DOC, {**CALL, "recovery": "reconcile"}, lost=True) == [*SETTLE, None]
    claimed = {**DOC, "continuations": [claim("started_indeterminate")]}
    assert told(claimed, lost=True) == ["maka session settle s --claim k1"]
    assert told({**DOC, "continuations": [claim("repair_required")]}, lost=True) == [None]
    assert told({**DOC, "settings": {"archived": True}}, lost=True) == []


def test_a_salvaged_session_is_not_sent_to_a_command_that_parks(maka_: Callable[..., Any], tmp_path: Path) -> None:
    journal = Builder().plain_turn().start().step().says().end_step().end("failed")
    lines = journal.lines
    raw = b"".join(line + b"\n" for line in (*lines[:3], lines[3][:40], *lines[4:]))
    path = journal.write(tmp_path, raw)
    assert "next" not in maka_("journal", "inspect", path).out.split("\n"), "damage comes first"
    for words in (("repair", path, "--salvage"), ("inspect", path)):
        told = [row.strip() for row in maka_("journal", *words).out.splitlines()]
        assert told[-2] == "next"
        assert told[-1].startswith("turn 2 failed, and lines of the journal are lost")
        assert told[-1].endswith("send a message, with `maka run --session` or in your program (`manager.send`)")


@pytest.mark.parametrize("hostile", ["a|b", "x; rm -r .", "$(x)`y`", "a b", "it's\n>f", "*&~!{a,b}", "--ok", "-"])
def test_a_command_is_one_command_wherever_it_is_pasted(hostile: str) -> None:
    words = Words(words_of(hostile, hostile), lambda: " --app MODULE:OBJECT")
    call = {**CALL, "call_id": hostile, "name": hostile, "recovery": "read_only"}
    twice = [call, {**call, "operation_id": hostile}]
    ids = {**claim("started_indeterminate", target=hostile), "claim_id": hostile}
    handed = {**HANDED, "handoffs": [{**HANDOFF, "handoff_id": hostile, "successor_run_id": hostile}]}
    claimed = {**DOC, "continuations": [claim("settled", target=hostile)]}
    claimed["runs"] = [RUN, {**RUN, "run_id": hostile}]
    docs = [(DOC, [call]), (DOC, twice), ({**DOC, "continuations": [ids]}, []), (handed, []), (claimed, [])]
    commands = [step["command"] for doc, unknown in docs for step in steps(doc, unknown, "r1", words)]
    assert len(commands) == 3 + 6 + 1 + 2 + 1
    for command in filter(None, commands):
        tokens = list(shlex(command, posix=True, punctuation_chars=True))
        assert not [token for token in tokens if set(token) <= set("();<>|&")], command
        bare = "".join(part for at, part in enumerate(command.replace("'\"'\"'", "").split("'")) if at % 2 == 0)
        assert not set(bare) & set("`$*?[]{}~!\\\n"), command


@pytest.mark.parametrize(
    ("config", "app"),
    [(None, " --app MODULE:OBJECT"), ('[maka]\napp = "agent:app"\n', ""), ("[", " --app MODULE:OBJECT")],
)
def test_a_command_names_an_app_where_none_is_configured(
    maka_: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, app: str
) -> None:
    root = tmp_path / "root"
    Builder("s").start().step().says().end_step().end("failed").write(root)
    if config is not None:
        (root / "config.toml").write_text(config)
        (root / "config.toml").chmod(0o600)
    for words in (("inspect", "s"), ("repair", "s")):
        assert maka_("journal", *words).out.endswith(f"→ `maka session resume s{app}`\n")
    monkeypatch.setenv("MAKA_APP", "agent:app")
    assert maka_("journal", "inspect", "s").out.endswith("→ `maka session resume s`\n")


def test_inspect_and_repair_say_what_comes_next(
    maka_: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path / "elsewhere", tmp_path / "root")
    orders.kill_at("tool")
    for words in (("inspect", "s"), ("repair", "s"), ("repair", "s"), ("inspect", "s")):
        told = [row.strip() for row in maka_("journal", *words).out.splitlines()]
        assert told[-4:] == [
            "order (c1) of turn 1: nobody knows what came of it; look outside, and state this if it happened",
            f"→ `{SETTLE[0]}`",
            "order (c1) of turn 1: nobody knows what came of it; or this if it did not; the model is told these words",
            f"→ `{SETTLE[1]}`",
        ]
    monkeypatch.delenv("MAKA_HOME")
    doc = maka_("journal", "inspect", "s", "--root", orders.root, "--json").json
    assert list(doc)[-1] == "next"
    happened, not_so = (split(step["command"]) for step in doc["next"])
    assert happened == ["maka", "session", "settle", "s", "--root", str(orders.root), "--call", "c1", "--ok"]
    assert not_so == [*happened[:-1], "--error", "it did not happen"]
    assert maka_(*happened[1:]).code == 0
    [step] = maka_("journal", "inspect", orders.session, "--json").json["next"]
    assert step["command"] == f"maka session resume {orders.session} --app MODULE:OBJECT"
    assert "stated by a person" in maka_("journal", "show", orders.journal).out


def test_of_a_fork_only_its_own_turns_go_on(maka_: Callable[..., Any], tmp_path: Path) -> None:
    root = tmp_path / "root"
    parent = Builder("parent").start().step().says().end_step().end("failed")
    parent.write(root)
    fork = Builder("fork", parent={"session_id": "parent", "seq": parent.seq - 1, "sum": parent.prev})
    fork.turn = 1
    fork.write(root)
    assert [step["command"] for step in maka_("journal", "inspect", "parent", "--json").json["next"]] == [
        "maka session resume parent --app MODULE:OBJECT"
    ]
    assert maka_("journal", "inspect", "fork", "--json").json["next"] == []
    fork.start().step().says().end_step().end("failed").write(root)
    assert [step["command"] for step in maka_("journal", "inspect", "fork", "--json").json["next"]] == [
        "maka session resume fork --app MODULE:OBJECT"
    ]


def test_messages_that_wait_are_the_hosts() -> None:
    queue = {"steering": [], "followup": [{"message_id": "m1"}]}
    doc = {**DOC, "runs": [], "turns": [], "queue": queue, "path": "/a root/sessions/s/journal.jsonl"}
    [step] = steps(doc, [], None, Words("s", lambda: " --app a:b"))
    assert step["command"] == "maka host start --root '/a root' --app a:b"
    assert str(step["why"]).startswith("1 message waits for a turn")
    assert told({**doc, "settings": {"archived": True}}, newest=None) == []
    assert told({**doc, "path": "/elsewhere/journal.jsonl"}, newest=None) == []
    assert told({**doc, "continuations": [claim("started_indeterminate")]}, newest=None) == [
        "maka session settle s --claim k1"
    ]
