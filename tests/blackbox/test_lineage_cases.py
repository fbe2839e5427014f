"""Claims, continuations and handoffs on disk: what each state of them shows, and what a repair makes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.answers import codes, finding, inspect, messages, refused, settled, shown, untouched
from support.builder import Builder

ABANDONED = "continuation_abandoned_before_provider_dispatch"
COMPOSITION: dict[str, Any] = {
    "schema": 1,
    "composer_id": "test",
    "composer_revision": "1",
    "source_revisions": [],
    **dict.fromkeys(
        (
            *("base_system_prompt_hash", "tool_catalog_hash"),
            *("tool_availability_hash", "base_provider_options_hash"),
        ),
        "sha256:" + "0" * 64,
    ),
    "tool_names": [],
    "context_window": None,
}


class Lineage(Builder):
    """A journal whose newest run may be continued."""

    def __init__(self, **header: Any) -> None:
        super().__init__(**header)
        self.first = 1
        self.claims: dict[str, dict[str, Any]] = {}

    def source(self, text: str = "go on") -> "Lineage":
        """A turn that a crash cut off and a repair closed."""
        self.first = self.seq
        self.start(text).step().says("half", ["c"])
        self.call("c")
        self.result("c").end_step().step(2).end_step()
        data = {**self.ids, "reason": {"kind": "interrupted"}, "synthesized": True}
        self.add("turn/end", data)
        return self

    def claim(
        self,
        claim_id: str = "cl",
        target: str = "rT",
        turn_id: str = "tT",
        purpose: str = "resume",
        source: dict[str, Any] | None = None,
        invocation_id: str | None = None,
        through: int | None = None,
    ) -> "Lineage":
        seq, sum_ = self.seq - 1, self.prev
        ids = {**(source or self.ids)}
        ids["invocation_id"] = f"i-{ids['run_id']}"
        segment = {"session_id": self.session_id, **ids, "first_seq": self.first, "last_seq": seq, "sum": sum_}
        came = {**ids, "high_water": seq}
        run = self.run(target, turn_id)
        if invocation_id:
            run["invocation_id"] = invocation_id
        run["continuation"] = {"claim_id": claim_id, "boundary_digest": sum_, "source": came}
        data = {
            "claim_id": claim_id,
            "purpose": purpose,
            "turn": self.turn + 1 if purpose == "resume" else self.turn,
            "boundary": {"segments": [segment]},
            "boundary_digest": sum_,
            "replay_digest": "0" * 64,
            "replay_through_seq": seq if through is None else through,
            "source": came,
            "target_run": run,
            "claimed_at": self.ts,
        }
        self.claims[claim_id] = data
        self.add("continuation/claim", data)
        return self

    def created(self, claim_id: str = "cl") -> "Lineage":
        self.add("run/created", {"run": self.claims[claim_id]["target_run"]})
        return self

    def begun(self, claim_id: str = "cl", kind: str = "runtime_admission") -> "Lineage":
        claim = self.claims[claim_id]
        run = claim["target_run"]
        self.add(
            "continuation/start",
            {
                "protocol": "continuation_start_v2",
                "start_kind": kind,
                "purpose": claim["purpose"],
                "claim_id": claim_id,
                "run_id": run["run_id"],
                "turn_id": run["turn_id"],
                **{key: claim[key] for key in ("boundary_digest", "replay_digest", "source")},
            },
        )
        return self

    def of(self, claim_id: str = "cl") -> dict[str, str]:
        run = self.claims[claim_id]["target_run"]
        return {"turn_id": run["turn_id"], "run_id": run["run_id"]}

    def stepping(self, claim_id: str = "cl", step: int = 1) -> "Lineage":
        self.add("step/start", {**self.of(claim_id), "step": step})
        return self

    def stopped(self, turn_id: str, source: str = "button") -> "Lineage":
        data = {"stop_id": f"s{self.seq}", "turn_id": turn_id, "source": source, "mode": "immediate"}
        self.add("turn/stop_requested", data)
        return self

    def ended(self, claim_id: str = "cl", kind: str = "completed") -> "Lineage":
        self.add("turn/end", {**self.of(claim_id), "reason": {"kind": kind}})
        return self

    def pausable(self, text: str = "a long one") -> "Lineage":
        self.first = self.seq
        self.start(text)
        self.add("run/composition", {"run_id": self.ids["run_id"], "composition": COMPOSITION})
        self.step().says("half").end_step()
        return self

    def pause(self, **other: Any) -> "Lineage":
        data = {
            "protocol": "runtime_handoff_pause_v1",
            "handoff_id": "h",
            "host_epoch": "e",
            **self.ids,
            "root_run_id": self.ids["run_id"],
            "successor_run_id": "rS",
            "successor_invocation_id": "iS",
            "claim_id": "cS",
            "remaining_steps": 2,
            **other,
        }
        self.add("handoff/pause", data)
        return self

    def handed(self) -> "Lineage":
        """The claim of the pause."""
        self.claim("cS", "rS", self.ids["turn_id"], "handoff", invocation_id="iS")
        return self


def resume(*steps: str) -> Lineage:
    """A source and then, in this order, what the steps name."""
    journal = Lineage().source()
    doing: dict[str, Callable[[], Any]] = {
        "claim": journal.claim,
        "created": journal.created,
        "start": journal.begun,
        "repair start": lambda: journal.begun(kind="claim_repair"),
        "composition": lambda: journal.add("run/composition", {"run_id": "rT", "composition": COMPOSITION}),
        "step": journal.stepping,
        "completed": journal.ended,
        "interrupted": lambda: journal.ended(kind="interrupted"),
        "settled": lambda: journal.add("run/settled", {"run_id": "rT"}),
        "stop": lambda: journal.stopped("tT"),
        "step end": lambda: journal.add("step/end", {**journal.of(), "step": 1}),
        "note": lambda: journal.add("session/note", {"kind": "x"}),
    }
    for step in steps:
        doing[step]()
    return journal


CRASH_TABLE: dict[str, tuple[list[str], str, list[str], str]] = {
    # name: steps, the claim's state, what a repair appends, the target's status afterwards
    "claim": (
        ["claim"],
        "repair_required",
        ["run/created", "continuation/start", "turn/end", "run/settled"],
        "failed",
    ),
    "run created": (
        ["claim", "created"],
        "repair_required",
        ["continuation/start", "turn/end", "run/settled"],
        "failed",
    ),
    "terminal": (
        ["claim", "created", "start", "step", "step end", "completed"],
        "repair_required",
        ["run/settled"],
        "completed",
    ),
    "terminal at once": (["claim", "created", "start", "completed"], "repair_required", ["run/settled"], "completed"),
    "a step": (["claim", "created", "start", "step"], "repair_required", ["step/end", "turn/end"], "failed"),
    "a closed step": (["claim", "created", "start", "step", "step end"], "repair_required", ["turn/end"], "failed"),
    "a step and a stop": (
        ["claim", "created", "start", "step", "stop"],
        "repair_required",
        ["step/end", "turn/end", "session/note", "run/settled"],
        "cancelled",
    ),
    "started and stopped": (
        ["claim", "created", "start", "stop"],
        "repair_required",
        ["turn/end", "session/note", "run/settled"],
        "cancelled",
    ),
    "composed and stopped": (
        ["claim", "created", "start", "composition", "stop"],
        "repair_required",
        ["turn/end", "session/note", "run/settled"],
        "cancelled",
    ),
    "stopped before the start": (
        ["claim", "created", "stop", "start"],
        "repair_required",
        ["turn/end", "session/note", "run/settled"],
        "cancelled",
    ),
}


@pytest.mark.parametrize("name", CRASH_TABLE)
def test_the_crash_table(tmp_path: Path, name: str) -> None:
    steps, state, appended, status = CRASH_TABLE[name]
    path = resume(*steps).write(tmp_path)
    doc = inspect(path)
    [row] = doc["continuations"]
    assert {key: value for key, value in row.items() if key != "advice"} == {
        "claim_id": "cl",
        "purpose": "resume",
        "state": state,
        "source": {"run_id": "r1", "turn_id": "t1"},
        "target": {"run_id": "rT", "turn_id": "tT"},
        "root_run_id": "r1",
        "depth": 1,
    }
    if state == "repair_required":
        stopped_at_its_start = "stop" in steps and not {"step", "completed"} & set(steps) and "start" in steps
        assert ("open_turn" if stopped_at_its_start else "claim_repair_required") in codes(doc)
    repaired = settled(path)
    assert repaired.types == appended
    assert repaired.again["runs"][-1]["status"] == status
    assert repaired.again["runs"][-1]["run_id"] == "rT"
    assert repaired.again["continuations"][0]["state"] == "settled"
    assert sum(b'"type":"turn/end"' in line for line in repaired.after.splitlines()) == 2


LEFT_ALONE: dict[str, tuple[list[str], str]] = {
    "start": (["claim", "created", "start"], "started_indeterminate"),
    "composition": (["claim", "created", "start", "composition"], "started_indeterminate"),
    "a note": (["claim", "created", "start", "note"], "started_indeterminate"),
    "settled": (["claim", "created", "start", "step", "step end", "completed", "settled"], "settled"),
    "interrupted": (["claim", "created", "start", "interrupted"], "settled"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(tmp_path: Path, name: str) -> None:
    steps, state = LEFT_ALONE[name]
    doc = untouched(resume(*steps).write(tmp_path))
    assert doc["continuations"][0]["state"] == state
    if state == "started_indeterminate":
        found = finding(doc, "claim_indeterminate")
        assert found["severity"] == "warning"
        assert doc["turns"][-1]["status"] == "indeterminate"
        assert doc["turns"][-1]["reason"] is None
        assert doc["runs"][-1]["status"] == "running"
        assert "open_turn" not in codes(doc)


def test_what_the_repair_of_a_claim_says(tmp_path: Path) -> None:
    journal = resume("claim")
    repaired = settled(journal.write(tmp_path))
    created, start, end, settle = repaired.data
    claim = journal.claims["cl"]
    assert created == {"run": claim["target_run"]}
    assert start == {
        "protocol": "continuation_start_v2",
        "start_kind": "claim_repair",
        "purpose": "resume",
        "claim_id": "cl",
        "run_id": "rT",
        "turn_id": "tT",
        **{key: claim[key] for key in ("boundary_digest", "replay_digest", "source")},
    }
    assert list(start)[:3] == ["protocol", "start_kind", "purpose"]
    assert end == {
        "turn_id": "tT",
        "run_id": "rT",
        "reason": {"kind": "failed", "failure_class": ABANDONED},
        "synthesized": True,
    }
    assert settle == {"run_id": "rT"}
    assert repaired.again["runs"][-1]["failure_class"] == ABANDONED
    assert repaired.again["turns"][-1]["turn"] == 2


def test_a_claim_behind_its_repair_can_be_claimed_again(tmp_path: Path) -> None:
    """The failed target of one claim is the source of the next: over two segments, oldest claim first."""
    journal = resume("claim", "created", "repair start")
    journal.add("turn/end", {**journal.of(), "reason": {"kind": "failed", "failure_class": ABANDONED}})
    end = journal.seq - 1
    journal.turn = 2
    journal.first = end - 1
    journal.claim("c2", "rU", "tU", source=journal.of())
    path = journal.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["run/settled", "run/created", "continuation/start", "turn/end", "run/settled"]
    assert [row["state"] for row in repaired.again["continuations"]] == ["settled", "settled"]


def test_claims_are_closed_before_turns(tmp_path: Path) -> None:
    """No generic interruption lands in a reserved target."""
    journal = Lineage().source()
    journal.claim()
    journal.start("another writer's turn").step()
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == [
        *("run/created", "continuation/start", "turn/end", "run/settled"),
        *("step/end", "turn/end"),
    ]
    assert [
        data["turn_id"] for kind, data in zip(repaired.types, repaired.data, strict=True) if kind == "turn/end"
    ] == [
        "tT",
        "t2",
    ]


def test_an_interaction_of_an_indeterminate_run_stays_pending(tmp_path: Path) -> None:
    journal = resume("claim", "created", "start")
    request = {"interaction_id": "i", **journal.of(), "kind": "question", "request": {"questions": []}}
    journal.add("interaction/requested", request)
    doc = untouched(journal.write(tmp_path))
    assert doc["interactions"] == [{"interaction_id": "i", "kind": "question", "status": "pending"}]


def test_a_start_without_claim_is_out_of_order(tmp_path: Path) -> None:
    journal = Lineage().source()
    journal.claim()
    journal.begun()
    journal.lines.pop(-2)
    import json

    from support.builder import seal

    line = json.loads(journal.lines.pop())
    line.pop("sum")
    line["seq"] -= 1
    sealed, _ = seal(json.loads(journal.lines[-1])["sum"], line)
    journal.lines.append(sealed)
    doc = refused(journal.write(tmp_path), "damaged")
    assert "turn_order" in codes(doc)


def test_a_replay_hides_what_stands_behind_its_anchor(tmp_path: Path) -> None:
    journal = Lineage()
    journal.first = journal.seq
    journal.start("go on").step().says("kept", ["c"])
    journal.call("c")
    journal.result("c", "the anchor")
    anchor = journal.seq - 1
    journal.end_step().step(2).says("said behind the anchor").end_step()
    journal.add("turn/end", {**journal.ids, "reason": {"kind": "interrupted"}, "synthesized": True})
    journal.claim(through=anchor)
    journal.created().begun()
    path = journal.write(tmp_path)
    assert shown(path) == [("user", "go on"), ("assistant", "kept"), ("assistant", "c:call"), ("tool", "c:ok")]
    from support.answers import maka

    assert "said behind the anchor" in maka("journal", "show", path).out, "shows keep it"


def test_a_resumed_turn_goes_on_in_the_history(tmp_path: Path) -> None:
    journal = resume("claim", "created", "start")
    journal.stepping()
    message = {**journal.of(), "step": 1, "message_id": "aT", "content": [{"kind": "text", "text": "resumed"}]}
    journal.add("assistant/message", {**message, "stop_reason": "end_turn"})
    journal.add("step/end", {**journal.of(), "step": 1})
    journal.ended()
    journal.add("run/settled", {"run_id": "rT"})
    journal.turn = 2
    journal.plain_turn("next")
    path = journal.write(tmp_path)
    untouched(path)
    flow = shown(path)
    assert ("assistant", "resumed") in flow
    assert flow[-2:] == [("user", "next"), ("assistant", "ok")]


# ---------------------------------------------------------------- handoffs


def handoff(*steps: str) -> Lineage:
    journal = Lineage().pausable()
    doing: dict[str, Callable[[], Any]] = {
        "pause": journal.pause,
        "claim": journal.handed,
        "created": lambda: journal.created("cS"),
        "start": lambda: journal.begun("cS"),
        "composition": lambda: journal.add("run/composition", {"run_id": "rS", "composition": COMPOSITION}),
        "step": lambda: journal.stepping("cS", 2),
        "step end": lambda: journal.add("step/end", {**journal.of("cS"), "step": 2}),
        "completed": lambda: journal.ended("cS"),
        "settled": lambda: journal.add("run/settled", {"run_id": "rS"}),
        "stop": lambda: journal.stopped("t1"),
    }
    for step in steps:
        doing[step]()
    return journal


@pytest.mark.parametrize(
    ("steps", "state", "claim", "turn"),
    [
        (["pause"], "pending", None, "paused"),
        (["pause", "claim"], "claimed", "reserved", "paused"),
        (["pause", "claim", "created"], "claimed", "reserved", "paused"),
        (["pause", "claim", "created", "start"], "continued", "started_indeterminate", "indeterminate"),
        (["pause", "claim", "created", "start", "composition"], "continued", "started_indeterminate", "indeterminate"),
        (
            ["pause", "claim", "created", "start", "step", "step end", "completed", "settled"],
            *("continued", "settled", "completed"),
        ),
    ],
)
def test_a_handoff_that_is_left_alone(
    tmp_path: Path, steps: list[str], state: str, claim: str | None, turn: str
) -> None:
    doc = untouched(handoff(*steps).write(tmp_path))
    assert doc["handoffs"] == [
        {
            "handoff_id": "h",
            "run_id": "r1",
            "turn_id": "t1",
            "successor_run_id": "rS",
            "claim_id": "cS",
            "remaining_steps": 2,
            "state": state,
        }
    ]
    assert [row["state"] for row in doc["continuations"]] == ([claim] if claim else [])
    assert doc["turns"][0]["status"] == turn
    assert doc["runs"][0]["status"] == "handed_off"
    assert ("pending_handoff" in codes(doc)) == (turn == "paused")
    assert ("claim_indeterminate" in codes(doc)) == (turn == "indeterminate")
    if turn == "completed":
        assert doc["turns"][0]["run_ids"] == ["r1", "rS"]
        assert doc["runs"][-1]["status"] == "completed"


@pytest.mark.parametrize(
    ("steps", "appended", "state", "status"),
    [
        (["pause", "claim", "created", "start", "step"], ["step/end", "turn/end"], "continued", "failed"),
        (["pause", "claim", "created", "start", "step", "step end"], ["turn/end"], "continued", "failed"),
        (["pause", "claim", "created", "start", "completed"], ["run/settled"], "continued", "completed"),
        (
            ["pause", "stop"],
            ["continuation/claim", "run/created", "continuation/start", "turn/end", "run/settled"],
            *("abandoned", "cancelled"),
        ),
        (
            ["stop", "pause"],
            ["continuation/claim", "run/created", "continuation/start", "turn/end", "run/settled"],
            *("abandoned", "cancelled"),
        ),
        (
            ["pause", "claim", "stop"],
            ["run/created", "continuation/start", "turn/end", "run/settled"],
            *("abandoned", "cancelled"),
        ),
        (
            ["pause", "claim", "created", "stop"],
            ["continuation/start", "turn/end", "run/settled"],
            *("abandoned", "cancelled"),
        ),
        (
            ["pause", "claim", "created", "start", "stop"],
            ["turn/end", "session/note", "run/settled"],
            *("continued", "cancelled"),
        ),
        (
            ["pause", "claim", "created", "start", "step", "stop"],
            ["step/end", "turn/end", "session/note", "run/settled"],
            *("continued", "cancelled"),
        ),
    ],
)
def test_a_handoff_that_is_closed(
    tmp_path: Path, steps: list[str], appended: list[str], state: str, status: str
) -> None:
    path = handoff(*steps).write(tmp_path)
    repaired = settled(path)
    assert repaired.types == appended
    again = repaired.again
    assert again["handoffs"][0]["state"] == state
    assert [run["status"] for run in again["runs"]] == ["handed_off", status]
    assert again["runs"][1]["run_id"] == "rS"
    assert len(again["turns"]) == 1
    ends = [data for kind, data in zip(repaired.types, repaired.data, strict=True) if kind == "turn/end"]
    for end in ends:
        assert end["run_id"] == "rS"
        if "stop" in steps:
            assert end["reason"] == {"kind": "aborted", "source": "button"}
        else:
            assert end["reason"] == {"kind": "interrupted"}
    if "step" in steps:
        assert "claim_repair_required" in codes(repaired.inspected)


def test_the_claim_that_abandons_a_handoff_has_the_pauses_ids(tmp_path: Path) -> None:
    journal = handoff("pause", "stop")
    pause = journal.seq - 2
    repaired = settled(journal.write(tmp_path))
    claim, created, start, end, settle = repaired.data
    import json

    sum_ = json.loads(journal.lines[pause])["sum"]
    assert (claim["claim_id"], claim["purpose"], claim["turn"]) == ("cS", "handoff", 1)
    assert claim["boundary_digest"] == sum_
    assert claim["source"] == {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": pause}
    [segment] = claim["boundary"]["segments"]
    assert (segment["last_seq"], segment["sum"], segment["first_seq"]) == (pause, sum_, 1)
    run = claim["target_run"]
    assert (run["run_id"], run["invocation_id"], run["turn_id"]) == ("rS", "iS", "t1")
    assert run["max_steps"] == 2
    assert run["continuation"]["claim_id"] == "cS"
    assert created == {"run": run}
    assert (start["start_kind"], start["purpose"], start["claim_id"]) == ("claim_repair", "handoff", "cS")
    assert end["run_id"] == settle["run_id"] == "rS"


def test_two_handoffs_in_one_turn(tmp_path: Path) -> None:
    journal = handoff("pause", "claim", "created", "start", "composition")
    journal.stepping("cS", 2)
    journal.add("step/end", {**journal.of("cS"), "step": 2})
    second = {"handoff_id": "h2", "run_id": "rS", "successor_run_id": "rU", "successor_invocation_id": "iU"}
    journal.pause(**second, claim_id="cU", remaining_steps=None)
    doc = untouched(journal.write(tmp_path))
    assert [row["state"] for row in doc["handoffs"]] == ["continued", "pending"]
    assert doc["handoffs"][1]["remaining_steps"] is None
    assert [row["state"] for row in doc["continuations"]] == ["settled"]
    assert [run["status"] for run in doc["runs"]] == ["handed_off", "handed_off"]
    assert doc["turns"][0]["status"] == "paused"
    journal.stopped("t1")
    repaired = settled(journal.write(tmp_path))
    assert repaired.types[:3] == ["continuation/claim", "run/created", "continuation/start"]
    assert repaired.data[0]["claim_id"] == "cU"
    assert "max_steps" not in repaired.data[0]["target_run"]


def _open_step(journal: Lineage) -> None:
    journal.step(2)
    journal.pause()


def _open_call(journal: Lineage) -> None:
    journal.step(2).says("", ["c"])
    journal.call("c")
    journal.end_step()
    journal.pause()


def _waiting(journal: Lineage) -> None:
    request = {"interaction_id": "i", **journal.ids, "kind": "question", "request": {"questions": []}}
    journal.add("interaction/requested", request)
    journal.pause()


FORGED: dict[str, Any] = {
    "open step": _open_step,
    "open call": _open_call,
    "pending interaction": _waiting,
    "another run": lambda journal: journal.pause(run_id="rX"),
    "another turn": lambda journal: journal.pause(turn_id="tX"),
    "itself": lambda journal: journal.pause(successor_run_id="r1"),
    "no steps": lambda journal: journal.pause(remaining_steps=0),
    "minus one": lambda journal: journal.pause(remaining_steps=-1),
    "a root that does not exist": lambda journal: journal.pause(root_run_id="rX"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_pause_seals_nothing(tmp_path: Path, name: str) -> None:
    journal = Lineage().pausable()
    FORGED[name](journal)
    path = journal.write(tmp_path)
    doc = refused(path, "damaged")
    assert "handoff_invalid" in codes(doc)
    assert "open_turn" in codes(doc)
    assert "pending_handoff" not in codes(doc)
    assert doc["handoffs"] == []
    repaired = settled(path, "--salvage")
    assert "turn/end" in repaired.types
    assert repaired.again["turns"][0]["status"] == "interrupted"
    assert repaired.again["runs"][0]["status"] == "failed"


def test_a_pause_with_a_successor_that_exists(tmp_path: Path) -> None:
    journal = Lineage()
    journal.plain_turn()
    journal.pausable().pause(successor_run_id="r1")
    assert "handoff_invalid" in codes(refused(journal.write(tmp_path), "damaged"))


def test_a_second_pause_of_a_sealed_run(tmp_path: Path) -> None:
    journal = handoff("pause")
    journal.pause(handoff_id="h2", successor_run_id="rZ", claim_id="cZ")
    doc = refused(journal.write(tmp_path), "damaged")
    assert codes(doc).count("handoff_invalid") == 1


def test_a_sealed_run_that_goes_on(tmp_path: Path) -> None:
    """After the seal nothing more stands in that run's ledger: what does is out of order."""
    journal = handoff("pause")
    journal.step(2)
    doc = refused(journal.write(tmp_path), "damaged")
    assert "turn_order" in codes(doc)
    repaired = settled(journal.write(tmp_path), "--salvage")
    assert repaired.again["turns"][0]["status"] == "interrupted"


def test_a_later_turn_after_a_pause(tmp_path: Path) -> None:
    journal = handoff("pause")
    journal.plain_turn("another")
    path = journal.write(tmp_path)
    doc = inspect(path)
    assert [turn["status"] for turn in doc["turns"]] == ["paused", "completed"]
    assert messages(path)


def test_a_pause_needs_no_runtime_to_read(tmp_path: Path) -> None:
    path = handoff("pause").write(tmp_path)
    assert shown(path) == [("user", "a long one"), ("assistant", "half")]


def test_a_handoff_history_reads_as_one_turn(tmp_path: Path) -> None:
    journal = handoff("pause", "claim", "created", "start", "composition", "step")
    message = {**journal.of("cS"), "step": 2, "message_id": "aS", "content": [{"kind": "text", "text": "whole"}]}
    journal.add("assistant/message", {**message, "stop_reason": "end_turn"})
    journal.add("step/end", {**journal.of("cS"), "step": 2})
    journal.ended("cS")
    journal.add("run/settled", {"run_id": "rS"})
    path = journal.write(tmp_path)
    untouched(path)
    assert shown(path) == [("user", "a long one"), ("assistant", "half"), ("assistant", "whole")]


def _resumed_with_an_outcome(later: list[str]) -> Lineage:
    """A crashed call; then, in this order, what ``later`` names; then a claim on the crashed run."""
    journal = Lineage()
    journal.start("go on").step().says("", ["c"])
    call = journal.call("c")
    data = {**journal.ids, "step": 1, "call_id": "c", "operation_id": "op-1-c", "state": "unknown", "is_error": True}
    journal.add("tool/result", {**data, "content": [], "call_seq": call, "synthesized": True})
    anchor = journal.seq - 1
    journal.end_step()
    journal.add("turn/end", {**journal.ids, "reason": {"kind": "interrupted"}, "synthesized": True})
    boundary = (journal.seq, journal.prev, journal.ids)
    for what in later:
        if what == "turn":
            journal.plain_turn("later")
        else:
            data = {"turn_id": "t1", "run_id": "r1", "call_id": "c", "call_seq": call, "operation_id": "op-1-c"}
            told = {"state": "ok", "content": [{"kind": "text", "text": "it had worked"}], "is_error": False}
            journal.add("tool/outcome", {**data, **told, "source": "reconciled"})
    seq, prev = journal.seq, journal.prev
    journal.seq, journal.prev = boundary[:2]
    journal.claim(source=boundary[2], through=anchor)
    data = {**journal.claims["cl"], "turn": journal.turn + 1}
    journal.lines.pop()
    journal.seq, journal.prev = seq, prev
    journal.add("continuation/claim", data)
    return journal.created().begun()


@pytest.mark.parametrize("later", [["outcome"], ["outcome", "turn"], ["turn", "outcome"], ["turn", "outcome", "turn"]])
def test_a_claim_shows_an_outcome_in_the_place_of_the_unknown_result(tmp_path: Path, later: list[str]) -> None:
    path = _resumed_with_an_outcome(later).write(tmp_path)
    untouched(path)
    flow = shown(path)
    assert flow[:3] == [("user", "go on"), ("assistant", "c:call"), ("tool", "c:ok")]


@pytest.mark.parametrize("value", [None, [], {}, 7, [[]], {"run_id": []}, [{"run_id": {}}]])
def test_a_claim_that_names_nothing_hides_nothing(tmp_path: Path, value: Any) -> None:
    journal = Lineage().source()
    journal.claim()
    data = {**journal.claims["cl"], "boundary": {"segments": value}, "source": {"run_id": value}}
    journal.lines.pop()
    import json

    journal.seq, journal.prev = journal.seq - 1, json.loads(journal.lines[-1])["sum"]
    journal.add("continuation/claim", data)
    path = journal.write(tmp_path)
    settled(path)
    assert ("user", "go on") in shown(path)
