"""Admissions, their messages, the queue, plans and usage on disk."""

from pathlib import Path
from typing import Any

import pytest

from support.answers import codes, finding, inspect, messages, refused, settled, shown, texts, untouched
from support.builder import Builder

KINDS = [
    "root",
    "linked_child_initial",
    "linked_child_resume",
    "linked_child_provider_retry",
    "claimed_agent_graph_intent",
]
CHILDREN = KINDS[1:]
INPUT = [{"kind": "text", "text": "do it"}]


class Intake(Builder):
    def admitted(self, kind: str = "root", message: str | None = "mA", turn: str = "A", **more: Any) -> "Intake":
        self.kind = kind
        execution = {"kind": kind, **({"source_run_id": "rOld"} if "resume" in kind or "retry" in kind else {})}
        self.add(
            "turn/admitted",
            {
                "turn_id": f"t{turn}",
                "run_id": f"r{turn}",
                **({"message_id": message} if message else {}),
                "previous_root_turn_id": None,
                "execution": execution,
                "input": {"content": INPUT},
                "input_digest": "0" * 64,
                "agent_id": "ag",
                "agent_name": "Agent",
                **more,
            },
        )
        self.admitted_ts = self.ts
        return self

    def made(self, turn: str = "A") -> "Intake":
        self.header = self.run(f"r{turn}", f"t{turn}")
        self.add("run/created", {"run": self.header})
        return self

    def opened(self, turn: str = "A", message: bool = False, run_id: str | None = None) -> "Intake":
        self.turn += 1
        run = self.run(run_id or f"r{turn}", f"t{turn}")
        if run_id is None and getattr(self, "header", None):
            run = self.header
        ids = {"turn_id": f"t{turn}", "run_id": run["run_id"], "invocation_id": run["invocation_id"]}
        self.add("turn/start", {**ids, "turn": self.turn, "run": run}, more=1 if message else 0)
        if message:
            self.message(turn)
        return self

    def message(self, turn: str = "A", message_id: str = "mA", content: Any = INPUT, kind: str = "user") -> "Intake":
        data = {"message_id": message_id, "turn_id": f"t{turn}", "run_id": f"r{turn}"}
        self.add("user/message", {**data, "content": content, "source": {"kind": kind}})
        return self

    def stopped(self, turn: str = "A") -> "Intake":
        data = {"stop_id": "s", "turn_id": f"t{turn}", "source": "button", "mode": "immediate"}
        self.add("turn/stop_requested", data)
        return self

    def stepping(self, turn: str = "A") -> "Intake":
        self.add("step/start", {"turn_id": f"t{turn}", "run_id": f"r{turn}", "step": 1})
        return self

    def over(self, turn: str = "A") -> "Intake":
        ids = {"turn_id": f"t{turn}", "run_id": f"r{turn}"}
        self.add("turn/end", {**ids, "reason": {"kind": "completed"}})
        self.add("run/settled", {"run_id": f"r{turn}"})
        return self

    def accepted(self, message_id: str, disposition: str = "followup", turn_id: str | None = None) -> "Intake":
        placement = "current_turn" if disposition == "steering" else "next_turn"
        data = {"message_id": message_id, "placement": placement, "disposition": disposition}
        data |= {"turn_id": turn_id} if turn_id else {}
        content = [{"kind": "text", "text": f"text of {message_id}"}]
        self.add("message/accepted", {**data, "content": content, "digest": "0" * 64})
        return self


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", [False, True])
@pytest.mark.parametrize("message", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_an_admission_without_a_start(tmp_path: Path, kind: str, run: bool, message: bool, stop: bool) -> None:
    journal = Intake().plain_turn()
    assert isinstance(journal, Intake)
    journal.admitted(kind, "mA" if message else None, options={"max_steps": 7})
    if run:
        journal.made()
    if stop:
        journal.stopped()
    path = journal.write(tmp_path)
    if kind == "root" and not run and not stop:
        doc = untouched(path)
        assert codes(doc) == ["admitted_without_run"]
        assert [turn["turn_id"] for turn in doc["turns"]] == ["t1"]
        return
    repaired = settled(path)
    assert "admission_unfinished" in codes(repaired.inspected)
    said = message and kind != "linked_child_provider_retry"
    wanted = ["turn/start", *(["user/message"] if said else []), "turn/end", *(["run/settled"] if stop else [])]
    assert repaired.types == wanted
    start = repaired.data[0]
    assert (start["turn_id"], start["run_id"], start["turn"]) == ("tA", "rA", 2)
    if run:
        assert start["run"] == journal.header
        assert start["invocation_id"] == "i-rA"
    else:
        lineage = {
            "linked_child_resume": {"resumed_from_run_id": "rOld"},
            "linked_child_provider_retry": {"retried_from_run_id": "rOld"},
        }.get(kind, {})
        assert start["run"] == {
            "run_id": "rA",
            "invocation_id": "rA",
            "turn_id": "tA",
            "backend": "fake",
            "model": "fake-model",
            "cwd": "/tmp",
            "permission_mode": "ask",
            "created_at": journal.admitted_ts,
            "root": {"kind": "user"},
            "max_steps": 7,
            "agent_id": "ag",
            "agent_name": "Agent",
            **lineage,
        }
        assert start["invocation_id"] == "rA"
    if said:
        assert repaired.data[1] == {
            "message_id": "mA",
            "turn_id": "tA",
            "run_id": "rA",
            "content": INPUT,
            "source": repaired.data[1]["source"],
        }
    end = repaired.data[len(wanted) - (2 if stop else 1)]
    assert end["reason"] == ({"kind": "aborted", "source": "button"} if stop else {"kind": "interrupted"})
    assert end["synthesized"] is True
    again = repaired.again
    assert again["runs"][-1]["status"] == ("cancelled" if stop else "failed")
    assert again["runs"][-1].get("failure_class") == (None if stop else "app_restarted")
    assert codes(again) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_a_start_without_its_message(tmp_path: Path, kind: str, run: bool, stop: bool) -> None:
    journal = Intake()
    journal.admitted(kind)
    if run:
        journal.made()
    journal.opened()
    if stop:
        journal.stopped()
    path = journal.write(tmp_path)
    doc = inspect(path)
    retry = kind == "linked_child_provider_retry"
    assert ("message_missing" in codes(doc)) == (not retry)
    repaired = settled(path)
    wanted = ["turn/end", *(["session/note", "run/settled"] if stop else [])]
    assert repaired.types == ([] if retry else ["user/message"]) + wanted
    if not retry:
        assert repaired.data[0]["message_id"] == "mA"
        assert repaired.data[0]["content"] == INPUT
        assert shown(path)[0] == ("user", "do it")


@pytest.mark.parametrize("over", [False, True])
def test_a_message_that_is_missed_late(tmp_path: Path, over: bool) -> None:
    """A step has begun, or the turn has ended: the projection shows the input in its place."""
    journal = Intake().admitted().made().opened()
    if over:
        journal.over()
        doc = untouched(journal.write(tmp_path))
    else:
        journal.stepping()
        doc = inspect(journal.write(tmp_path))
        assert settled(journal.write(tmp_path)).types == ["step/end", "turn/end"]
    missing = finding(doc, "message_missing")
    assert missing["severity"] == "notice"
    assert shown(journal.write(tmp_path / "again"))[0] == ("user", "do it")


@pytest.mark.parametrize("kind", KINDS)
def test_an_admission_that_ran_is_over(tmp_path: Path, kind: str) -> None:
    journal = Intake().admitted(kind).made().opened(message=kind != "linked_child_provider_retry").over()
    doc = untouched(journal.write(tmp_path))
    assert codes(doc) == []
    assert doc["turns"][0]["status"] == "completed"


@pytest.mark.parametrize("broken", ["content", "message id", "run"])
def test_what_contradicts_its_admission(tmp_path: Path, broken: str) -> None:
    journal = Intake().admitted()
    if broken == "run":
        journal.opened(run_id="rOther")
    else:
        journal.made().opened()
        other = [{"kind": "text", "text": "something else"}]
        journal.message(**({"content": other} if broken == "content" else {"message_id": "mB"}))
    doc = refused(journal.write(tmp_path), "damaged")
    assert "admission_mismatch" in codes(doc)
    untouched(Builder("other").plain_turn().write(tmp_path))


def test_several_admissions_oldest_first_and_their_numbers(tmp_path: Path) -> None:
    journal = Intake()
    journal.admitted("linked_child_initial", "mA", "A")
    journal.admitted("claimed_agent_graph_intent", "mB", "B")
    journal.admitted("root", "mC", "C")
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == ["turn/start", "user/message", "turn/end"] * 2
    assert [data["turn"] for data in repaired.data if "turn" in data] == [1, 2]
    assert codes(repaired.again) == ["admitted_without_run"]


def test_an_admission_behind_an_open_turn(tmp_path: Path) -> None:
    """Claims, then admissions, then open turns; whatever the order, the history is that of the turns."""
    journal = Intake()
    journal.start("first").step().says("", ["c"])
    journal.call("c")
    journal.admitted("linked_child_initial")
    path = journal.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == [
        *("turn/start", "user/message", "turn/end"),
        *("tool/result", "step/end", "turn/end"),
    ]
    assert [word for role, word in shown(path) if role == "user"] == ["first", "do it"]


def test_quotes_and_attachments_are_restored(tmp_path: Path) -> None:
    quotes = [{"text": "said before", "source": "m0"}]
    attached = [{"name": "a.png", "media_type": "image/png", "ref": "sha256:" + "0" * 64, "bytes": 3}]
    journal = Intake().admitted(input={"content": INPUT, "quotes": quotes, "attachments": attached}).made()
    repaired = settled(journal.write(tmp_path))
    message = repaired.data[1]
    assert (message["content"], message["quotes"], message["attachments"]) == (INPUT, quotes, attached)


def test_an_admission_takes_its_queued_message(tmp_path: Path) -> None:
    journal = Intake().accepted("q1").accepted("q2")
    journal.admitted("root", "q1")
    doc = untouched(journal.write(tmp_path))
    assert doc["queue"] == {"steering": [], "followup": [{"message_id": "q2", "seq": 2}]}
    assert sorted(codes(doc)) == ["admitted_without_run", "queued_messages"]


# ---------------------------------------------------------------- queue


def _ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["message_id"] for row in rows]


def test_the_queue_over_a_crash(tmp_path: Path) -> None:
    """Order and ids are kept; what a user message took is not there; steering that was not taken comes first."""
    journal = Intake().accepted("before")
    journal.start("go").step().says().end_step()
    journal.accepted("f1").accepted("s1", "steering", "t1").accepted("s2", "steering", "t1").accepted("f2")
    journal.user("taken", "steering", "s1")
    journal.step(2)
    journal.accepted("s3", "steering", "t1")
    journal.add("message/retracted", {"retract_id": "x", "message_ids": ["f1", "nobody", "s1"]})
    path = journal.write(tmp_path)
    repaired = settled(path)
    queue = repaired.again["queue"]
    assert queue["steering"] == []
    assert _ids(queue["followup"]) == ["s2", "s3", "before", "f2"]
    assert "queued_messages" in codes(repaired.again)
    assert finding(repaired.again, "queued_messages")["severity"] == "info"
    assert "text of f2" not in texts(messages(path))


def test_an_empty_retraction(tmp_path: Path) -> None:
    journal = Intake().accepted("a")
    journal.add("message/retracted", {"retract_id": "x", "message_ids": []})
    assert _ids(untouched(journal.write(tmp_path))["queue"]["followup"]) == ["a"]


def test_a_stop_that_retracts(tmp_path: Path) -> None:
    journal = Intake()
    journal.start("go").step()
    journal.accepted("a").accepted("b")
    stop = {"stop_id": "s", "turn_id": "t1", "source": "b", "mode": "immediate", "retract": ["a"]}
    journal.add("turn/stop_requested", stop)
    repaired = settled(journal.write(tmp_path))
    assert _ids(repaired.again["queue"]["followup"]) == ["b"]


def test_everything_retracted_says_nothing(tmp_path: Path) -> None:
    journal = Intake().accepted("a").accepted("b")
    journal.add("message/retracted", {"retract_id": "x", "message_ids": ["b", "a"]})
    doc = untouched(journal.write(tmp_path))
    assert codes(doc) == []
    assert doc["queue"] == {"steering": [], "followup": []}


# ---------------------------------------------------------------- plans, usage, what else is known


def _proposed(journal: Builder, proposal: str = "p", revision: int = 1) -> None:
    steps = [{"id": "1", "title": "one", "description": "first"}]
    data = {"proposal_id": proposal, "revision": revision, "turn_id": "t1", "title": f"plan {proposal}"}
    journal.add("plan/proposed", {**data, "steps": steps})


def _approved(journal: Builder, proposal: str = "p", revision: int = 1, execution: str = "e") -> None:
    journal.add("plan/approved", {"proposal_id": proposal, "revision": revision, "execution_id": execution})


def test_a_plan_through_its_life(tmp_path: Path) -> None:
    journal = Builder().plain_turn()
    steps = [{"id": "1", "title": "one", "description": "first"}]
    shape = {"proposal_id": "p", "revision": 1, "title": "plan p", "turn_id": "t1", "steps": steps}
    _proposed(journal)
    doc = untouched(journal.write(tmp_path))
    assert doc["plans"] == [{**shape, "status": "proposed", "execution": None}]
    assert codes(doc) == []
    _approved(journal)
    doc = untouched(journal.write(tmp_path))
    running = {"execution_id": "e", "status": "active"}
    assert doc["plans"] == [{**shape, "status": "approved", "execution": running}]
    assert codes(doc) == ["active_plan"]
    for status in ("completed", "cancelled", "interrupted"):
        over = Builder().plain_turn()
        _proposed(over)
        _approved(over)
        over.add("plan/execution", {"execution_id": "e", "status": status, "reason": "r"})
        doc = untouched(over.write(tmp_path))
        assert doc["plans"][0]["execution"] == {"execution_id": "e", "status": status, "reason": "r"}
        assert codes(doc) == []


def test_the_end_of_a_turn_writes_nothing_about_plans(tmp_path: Path) -> None:
    journal = Builder().start().step()
    _proposed(journal)
    _approved(journal)
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == ["step/end", "turn/end"]
    assert repaired.again["plans"][0]["execution"]["status"] == "active"


def _usage(journal: Builder, **counts: Any) -> None:
    journal.start().step()
    message = {**journal.ids, "step": 1, "message_id": f"u{journal.turn}", "content": [], "stop_reason": "end_turn"}
    journal.add("assistant/message", {**message, "usage": counts})
    journal.end_step().end()


def test_usage_is_the_sum(tmp_path: Path) -> None:
    journal = Builder()
    _usage(journal, input_tokens=3, output_tokens=5, cache_read_tokens=7)
    _usage(journal, input_tokens=10, output_tokens=20, cache_write_tokens=1, reasoning_tokens=2)
    _usage(journal, input_tokens=None, output_tokens="many", cache_read_tokens={"x": 1}, other=5)
    doc = untouched(journal.write(tmp_path))
    assert doc["usage"] == {
        "input_tokens": 13,
        "output_tokens": 25,
        "cache_read_tokens": 7,
        "cache_write_tokens": 1,
        "reasoning_tokens": 2,
    }


def test_a_quarantine_is_told(tmp_path: Path) -> None:
    journal = Builder().plain_turn()
    journal.add("session/note", {"kind": "quarantine", "text": "stay away"})
    doc = untouched(journal.write(tmp_path))
    assert finding(doc, "quarantine")["severity"] == "info"
    assert "stay away" not in " ".join(texts(messages(journal.write(tmp_path))))


@pytest.mark.parametrize("kind", ["question", "permission", "sandbox_boundary"])
def test_interactions_of_two_runs_and_an_open_answer(tmp_path: Path, kind: str) -> None:
    journal = Builder().start().step().says("", ["c"])
    for number in range(3):
        ids = {"interaction_id": f"i{number}", **journal.ids}
        journal.add("interaction/requested", {**ids, "kind": kind, "request": {}})
    outcome = {"kind": "closure", "reason": "gone"}
    journal.add("interaction/resolved", {"interaction_id": "i1", "outcome": outcome})
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == ["tool/result", *["interaction/resolved"] * 2, "step/end", "turn/end"]
    assert [data["interaction_id"] for data in repaired.data[1:3]] == ["i0", "i2"]


def test_an_answer_to_nothing(tmp_path: Path) -> None:
    journal = Builder().plain_turn()
    outcome = {"kind": "closure", "reason": "gone"}
    journal.add("interaction/resolved", {"interaction_id": "nobody", "outcome": outcome})
    doc = inspect(journal.write(tmp_path))
    assert doc["interactions"] == []
