"""A turn that was handed over: `resume` lets the successor finish it, `settle` gives it up; both are shown."""

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import split
from typing import Any

import pytest

import maka
from maka.cli import documents, exits, onward
from maka.cli import resume as work
from maka.cli.signals import Interrupt
from support.lineages import Story
from support.orders import Orders

Run = Callable[..., Any]

APP = ("--app", "agent:handed")
GIVE_UP = "maka session settle s --handoff {}"


def codes(doc: dict[str, Any]) -> list[str]:
    return [row["code"] for row in doc["diagnostics"]]


def turn_of(orders: Orders) -> dict[str, Any]:
    [turn] = maka.inspect(orders.journal).turns()
    return dict(turn)


def rows(text: str) -> list[str]:
    return [" ".join(row.split()) for row in text.splitlines()]


# ---------------------------------------------------------------- resume


def test_the_successor_finishes_the_turn_on_the_screen(resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = resume(*APP)
    assert (ran.code, ran.err) == (0, "the model was asked\n")
    told = rows(ran.out)
    successor, turn = pause["successor_run_id"], pause["turn_id"]
    assert f"handed over run {successor} finishes turn {turn}, with 8 steps left" in told
    assert f"goes on as run {successor}, turn {turn}" in told
    assert "I see to it. It is done.\\x1b[2J" in told
    assert told[-1] == f"turn {turn} completed"
    ended = turn_of(orders)
    assert (ended["status"], ended["run_ids"], ended["steps"]) == ("completed", [pause["run_id"], successor], 2)
    assert orders.orders() == ["40 chairs"]
    assert [message["role"] for message in orders.requests()[-1]] == ["user", "assistant", "tool"]


def test_the_document_is_that_of_any_resume(resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["disposition"], ran.json["source_run_id"]) == (0, "continue", pause["run_id"])
    assert (ran.json["continuation"]["purpose"], ran.json["continuation"]["max_steps"]) == ("handoff", 8)
    assert ran.json["turn"]["turn_id"] == pause["turn_id"]
    assert (ran.json["turn"]["run_id"], ran.json["turn"]["status"]) == (pause["successor_run_id"], "completed")
    assert ran.json["recovered"] == {
        "state": "unchanged", "appended": 0, "reconciled": 0, "interrupted": None, "interrupted_plan": None,
    }  # fmt: skip


def test_a_plan_says_what_would_happen_and_writes_nothing(resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    before = orders.journal.read_bytes()
    for words in ((), APP):
        ran = resume("--plan", *words)
        assert ran.code == 0
        assert f"run {pause['successor_run_id']} finishes turn {pause['turn_id']}, with 8 steps left" in ran.out
        assert "(the result of c1)" in ran.out
    assert orders.journal.read_bytes() == before
    assert resume().code == 2, "nothing runs without an app"
    assert orders.journal.read_bytes() == before


def test_the_paused_run_and_its_successor_may_be_named(resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = resume("--plan", "--json", "--run", pause["run_id"][:8])
    assert (ran.code, ran.json["continuation"]["run_id"]) == (0, pause["successor_run_id"])
    assert resume(*APP, "--run", pause["run_id"]).code == 0
    ran = resume("--app", "agent:app", "--run", pause["run_id"], "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["runtime_identity_mismatch"]), "it is an ordinary run now"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--again", ("--again",)),
        ("--rerun", ("--rerun", "read_only")),
        ("--permission-mode", ("--permission-mode", "ask")),
    ],
)
def test_what_has_no_meaning_there_is_refused(resume: Run, orders: Orders, option: str, words: tuple[str, ...]) -> None:
    pause = orders.hand_over()
    before = orders.journal.read_bytes()
    ran = resume(*APP, "--run", pause["run_id"], *words)
    assert (ran.code, ran.out) == (2, "")
    [sentence] = ran.err.splitlines()
    assert sentence.startswith(f"maka: {option} has no meaning here, because the turn was handed over")
    assert sentence.endswith("see `maka session resume --help`")
    assert orders.journal.read_bytes() == before


def test_both_ways_out_are_named_where_it_parks(resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = resume("--app", "agent:unarmed", "--json")
    assert (ran.code, ran.json["disposition"], ran.json["turn"]) == (1, "park", None)
    assert "tool_catalog_mismatch" in ran.json["rejection_reasons"]
    assert codes(ran.json)[-1] == "handoff_pending"
    ran = resume("--app", "agent:unarmed")
    assert ran.code == 1
    assert f"waits for run {pause['successor_run_id']}" in ran.out
    assert "Mend that and try again" in ran.out
    assert f"`{GIVE_UP.format(pause['handoff_id'])}`" in ran.out
    assert "handoff_pending" not in codes(resume("--plan", "--json").json)


def test_another_run_parks_and_what_is_in_its_way_is_named(resume: Run, orders: Orders) -> None:
    orders.kill_at("text", app="handed")
    first = maka.inspect(orders.journal).runs()[0]["run_id"]
    journal = maka.load(orders.journal)
    assert journal.turns()[0]["status"] == "interrupted"
    asyncio.run(_second_turn(orders))
    ran = resume("--app", "agent:app", "--run", first, "--json")
    assert (ran.code, codes(ran.json)[-1]) == (1, "handoff_pending")
    assert "Let that go on, once nothing stands in its way" in ran.json["diagnostics"][-1]["message"]


async def _second_turn(orders: Orders) -> None:
    """A message, whose turn is handed over at once."""
    from maka.runtime import SessionManager

    sys.path.insert(0, str(orders.folder))
    agent = importlib.import_module("agent")
    async with SessionManager(orders.root, app=agent.handed) as manager:
        stream = manager.send("s", "Once more.")
        await stream.started()
        await manager.hand_over("s")


@pytest.mark.parametrize(("app", "reason"), [("changed", "composition_changed"), ("app", "composition_unavailable")])
def test_what_the_app_tells_beforehand_parks_and_keeps_the_handoff(
    resume: Run, orders: Orders, app: str, reason: str
) -> None:
    pause = orders.hand_over()
    before = orders.journal.read_bytes()
    ran = resume("--app", f"agent:{app}", "--json")
    assert (ran.code, ran.json["rejection_reasons"], ran.json["turn"]) == (1, [reason], None)
    assert GIVE_UP.format(pause["handoff_id"]) in resume("--app", f"agent:{app}").out
    assert orders.journal.read_bytes() == before
    assert resume(*APP).code == 0


def test_another_agent_is_refused_and_the_turn_then_goes_on_as_one_that_failed(resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = resume("--app", "agent:hidden", "--json")
    assert ran.code == 1
    assert (ran.json["turn"]["status"], ran.json["turn"]["run_id"]) == ("failed", pause["successor_run_id"])
    assert codes(ran.json)[-1] == "composition_changed"
    assert "prompt changed" in ran.err
    assert "give the handoff up" not in ran.err, "there is none any more"
    assert len(orders.requests()) == 1
    ran = resume("--app", "agent:app", "--json")
    assert (ran.code, ran.json["source_run_id"]) == (0, pause["successor_run_id"])
    assert [turn["status"] for turn in maka.inspect(orders.journal).turns()] == ["failed", "completed"]
    assert orders.orders() == ["40 chairs"]


def test_what_comes_behind_a_successor_that_was_refused_is_told(resume: Run, orders: Orders) -> None:
    orders.hand_over()
    ran = resume("--app", "agent:hidden")
    assert (ran.code, "prompt changed" in ran.err) == (1, True)
    assert rows(ran.out)[-2:] == [
        "turn 1 failed; this goes on from there", "→ `maka session resume s --app agent:hidden`",
    ]  # fmt: skip
    assert resume("--app", "agent:app").code == 0


def test_that_nobody_can_answer_is_told_before_the_successor_begins(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOVERY", "read_only")
    orders.kill_at("handed over", app="armed", mode="ask", PACE="0.2")
    for words in ((), ("--app", "agent:armed")):
        ran = resume("--plan", "--json", *words)
        assert (ran.code, codes(ran.json)[-1]) == (0, "nobody_to_answer")
    assert "`command` is one" in ran.json["diagnostics"][-1]["message"]
    ran = resume("--plan", "--app", "agent:armed")
    assert "`maka session resume s --app agent:armed --permission-mode MODE`" in ran.out
    assert "nobody_to_answer" in resume("--app", "agent:armed").out
    assert turn_of(orders)["status"] == "completed"


def test_where_nothing_asks_nobody_has_to_answer(resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOVERY", "read_only")
    orders.kill_at("handed over", app="handed", mode="ask", PACE="0.2")
    assert codes(resume("--plan", "--json", *APP).json) == []
    assert codes(resume("--plan", "--json").json) == ["app_missing", "nobody_to_answer"]


def test_a_session_that_was_set_up_differently_keeps_its_handoff(maka_: Run, resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    asyncio.run(_updated(orders, {"model": "another"}))
    before = orders.journal.read_bytes()
    ran = resume(*APP)
    assert ran.code == 1
    assert GIVE_UP.format(pause["handoff_id"]) in ran.out + ran.err
    assert orders.journal.read_bytes() == before
    assert maka_("session", "settle", "s", "--handoff", pause["handoff_id"]).code == 0


async def _updated(orders: Orders, patch: dict[str, Any]) -> None:
    from maka.runtime import SessionManager

    sys.path.insert(0, str(orders.folder))
    agent = importlib.import_module("agent")
    async with SessionManager(orders.root, app=agent.handed) as manager:
        await manager.update("s", patch)


def test_a_turn_that_is_handed_over_again_is_pending(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one process: somebody hands the successor over while the command shows it."""
    first = orders.hand_over()
    sys.path.insert(0, str(orders.folder))
    agent = importlib.import_module("agent")
    (orders.folder / "requests.jsonl").unlink()

    async def main() -> documents.Answer:
        place = work.place_of("s", str(orders.root))
        async with place.manager(agent.handed) as manager:
            meant = work.meant_by(place, None)
            plan, answer = await work.planned(manager, place, meant, rerun=(), mode=None, dry=False, app=agent.handed)
            assert plan.continuation is not None
            stream = manager.resume_safe_boundary_continuation

            def handing(planned: Any) -> Any:
                made = stream(planned)
                begun = made.started

                async def started() -> None:
                    await begun()
                    handed.append(asyncio.ensure_future(manager.hand_over("s")))

                monkeypatch.setattr(made, "started", started)
                return made

            handed: list[Any] = []
            monkeypatch.setattr(manager, "resume_safe_boundary_continuation", handing)
            words = onward.Words("s", lambda: "")
            answer = await work.run(
                manager, plan.continuation, answer.doc, None, words=words, handoff=meant.handoff, told=Interrupt()
            )
            await handed[0]
            return answer

    answer = asyncio.run(main())
    assert answer.code == exits.PENDING
    for named in (first["run_id"], first["successor_run_id"]):
        meant = work.meant_by(work.place_of("s", str(orders.root)), named)
        assert meant.run_id == first["successor_run_id"], "whichever of its runs is named, the turn's newest goes on"
    assert answer.doc["turn"] == {
        "turn_id": first["turn_id"], "run_id": first["successor_run_id"], "status": "paused", "reason": None,
    }  # fmt: skip
    assert answer.refusal is not None
    assert answer.refusal.startswith("the turn was handed over again while it ran here, and is not done")
    assert answer.refusal.endswith("`maka session resume s`")
    [row] = maka.inspect(orders.journal).executions()
    assert len(row["chain"]) == 2
    assert row["status"] == "paused"
    assert [item["state"] for item in maka.inspect(orders.journal).handoffs()] == ["continued", "pending"]


# ---------------------------------------------------------------- killed on the way


@pytest.mark.parametrize("point", ["after_continuation_claim_committed", "after_run_created"])
def test_a_successor_that_was_cut_off_before_its_start_goes_on(
    maka_: Run, resume: Run, orders: Orders, point: str
) -> None:
    pause = orders.hand_over()
    orders.kill_at(point, goes_on=True, app="handed")
    told = maka_("journal", "inspect", "s").out
    assert f"{pause['handoff_id']} claimed {pause['run_id']}" in " ".join(told.split())
    assert "→ `maka session resume s --app MODULE:OBJECT`" in told
    assert f"→ `{GIVE_UP.format(pause['handoff_id'])}`" in told
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["turn"]["run_id"]) == (0, pause["successor_run_id"])
    assert turn_of(orders)["status"] == "completed"


@pytest.mark.parametrize("point", ["after_continuation_claim_committed", "after_run_created"])
def test_a_successor_that_never_began_is_given_up(maka_: Run, orders: Orders, point: str) -> None:
    pause = orders.hand_over()
    orders.kill_at(point, goes_on=True, app="handed")
    assert maka_("session", "settle", "s", "--handoff", pause["handoff_id"][:8]).code == 0
    assert turn_of(orders)["reason"]["failure_class"] == "handoff_abandoned"


def test_a_successor_that_may_have_asked_the_model_is_settled_by_its_claim(
    maka_: Run, resume: Run, orders: Orders
) -> None:
    pause = orders.hand_over()
    orders.kill_at("after_continuation_start_committed", goes_on=True, app="handed")
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["continuation_started_indeterminate"])
    assert codes(ran.json) == ["continuation_started_indeterminate"]
    assert f"`maka session settle s --claim {pause['claim_id']}`" in resume(*APP).out
    ran = maka_("session", "settle", "s", "--handoff", pause["handoff_id"])
    assert (ran.code, ran.out) == (2, "")
    told = rows(maka_("journal", "inspect", "s").out)
    assert [row for row in told if row.startswith("→ `")] == [f"→ `maka session settle s --claim {pause['claim_id']}`"]
    assert maka_("session", "settle", "s", "--claim", pause["claim_id"]).code == 0
    assert turn_of(orders)["status"] == "failed"


def test_after_a_kill_in_a_tool_of_the_successor_what_has_to_be_settled_comes_first(maka_: Run, tmp_path: Path) -> None:
    story = paused().go_on("r1", "handoff").step(2).says(calls=["c9"])
    story.call("c9")
    path = story.write(tmp_path)

    def commands() -> list[str]:
        return [step["command"] for step in maka_("journal", "inspect", path, "--json").json["next"]]

    happened, not_so = commands()
    assert happened == f"maka session settle {path} --call c9 --ok"
    assert not_so == f"maka session settle {path} --call c9 --error 'it did not happen'"
    assert maka_(*split(not_so)[1:]).code == 0
    assert commands() == [f"maka session resume {path} --app MODULE:OBJECT"]


# ---------------------------------------------------------------- settle


def test_a_handoff_is_given_up_and_the_turn_goes_on_as_one_that_failed(maka_: Run, resume: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = maka_("session", "settle", "s", "--handoff", pause["handoff_id"][:6], "--reason", "the new host is gone")
    assert (ran.code, ran.err) == (0, "")
    told = rows(ran.out)
    assert told[0] == f"settled: turn {pause['turn_id']} has failed (handoff_abandoned)"
    assert told[1] == f"run {pause['successor_run_id']} will not finish turn 1; messages are taken again"
    assert told[-1] == "→ `maka session resume s --app MODULE:OBJECT`"
    assert turn_of(orders)["reason"]["message"].endswith("the new host is gone")
    before = orders.journal.read_bytes()
    ran = maka_("session", "settle", "s", "--handoff", pause["handoff_id"])
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert orders.journal.read_bytes() == before
    ran = resume("--app", "agent:app", "--json")
    assert (ran.code, ran.json["source_run_id"]) == (0, pause["successor_run_id"])
    assert orders.orders() == ["40 chairs"]


def test_the_answer_as_a_document(maka_: Run, orders: Orders) -> None:
    pause = orders.hand_over()
    ran = maka_("session", "settle", "s", "--handoff", pause["handoff_id"], "--json")
    assert (ran.code, set(ran.json)) == (0, {"session_id", "path", "call", "handoff", "appended"})
    assert (ran.json["call"], ran.json["handoff"]["turn"], ran.json["handoff"]["state"]) == (None, 1, "abandoned")
    assert ran.json["handoff"]["successor_run_id"] == pause["successor_run_id"]
    assert [event["type"] for event in ran.json["appended"]] == [
        "continuation/claim", "run/created", "continuation/start", "turn/end", "run/settled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("--handoff", "h", "--claim", "c"),
        ("--handoff", "h", "--call", "c", "--ok"),
        ("--handoff", "h", "--ok"),
        ("--handoff", "h", "--error", "no"),
        ("text", "--handoff", "h"),
        ("--handoff", ""),
        ("--handoff",),
        ("--claim", "c", "--reason", "why"),
        ("--reason", "why"),
    ],
)
def test_words_that_do_not_go_together(maka_: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = paused().write(tmp_path)
    raw = path.read_bytes()
    ran = maka_("session", "settle", path, *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("; see `maka session settle --help`\n")
    assert path.read_bytes() == raw


def test_a_handoff_that_is_not_there_is_one_sentence(maka_: Run, tmp_path: Path) -> None:
    path = paused().write(tmp_path)
    ran = maka_("session", "settle", path, "--handoff", "h9")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "h9" in ran.err


def test_a_live_session_is_not_touched(maka_: Run, resume: Run, orders: Orders) -> None:
    with orders.life("handed over", app="handed", PACE="0.2") as child:
        raw = orders.journal.read_bytes()
        [pause] = [event.data for event in maka.inspect(orders.journal).events if event.type == "handoff/pause"]
        for ran in (resume(*APP), maka_("session", "settle", "s", "--handoff", pause["handoff_id"])):
            assert (ran.code, ran.out) == (3, "")
            assert f"process {child.process.pid}" in ran.err
        assert orders.journal.read_bytes() == raw


def test_the_option_is_in_the_help(maka_: Run) -> None:
    ran = maka_("session", "settle", "--help")
    assert ran.code == 0
    assert "--handoff" in ran.out
    assert "--reason" in ran.out


# ---------------------------------------------------------------- what is shown


def paused(**pause: Any) -> Story:
    """A journal whose turn waits for its successor."""
    story = Story()
    story.start().step().says().end_step()
    if not pause:
        return story.pause()
    story.add("run/composition", {"run_id": "r1", "composition": {}})
    ids = {"host_epoch": "e", **story.ids, "root_run_id": "r1", "successor_invocation_id": "iS", "claim_id": "cS"}
    data = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", **ids, "successor_run_id": "rS"}
    story.add("handoff/pause", {**data, "remaining_steps": None, **pause})
    return story


def test_a_pending_handoff_is_shown_with_both_ways_out(maka_: Run, tmp_path: Path) -> None:
    path = paused().write(tmp_path / "root")
    ran = maka_("journal", "inspect", "s1")
    assert ran.code == 0
    told = rows(ran.out)
    assert "h-r1' pending r1 r1' 9 resume it, or settle it" in told
    assert "t1 user r1 r1 paused h-r1'" in told
    why = "turn 1 was handed over and waits for run r1'; let that finish it, or give the handoff up"
    assert told[-3:] == [
        why,
        "→ `maka session resume s1 --app MODULE:OBJECT`",
        """→ `maka session settle s1 --handoff 'h-r1'"'"''`""",
    ]
    doc = maka_("journal", "inspect", path, "--json").json
    assert [step["why"] for step in doc["next"]] == [why, why]
    [execution] = doc["executions"]
    assert (execution["chain"], execution["pending_handoff"]) == (["r1"], "h-r1'")


def test_a_listing_marks_work_that_waits(maka_: Run, tmp_path: Path) -> None:
    story = paused()
    story.add("plan/proposed", {"proposal_id": "p", "revision": 1, "turn_id": "t1", "title": "it", "steps": []})
    story.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    path = story.write(tmp_path / "root")
    assert rows(maka_("journal", "list").out)[1].endswith(" pending handoff, active plan “hi”")
    assert maka_("session", "settle", path, "--handoff", "h-r1'").code == 0
    [row] = maka_("journal", "list", "--json").json["sessions"]
    assert (row["pending_handoff"], row["active_plan"]) == (False, True)
    assert rows(maka_("journal", "list").out)[1].endswith(" active plan “hi”")


def test_what_a_recovery_made_of_a_plan_is_said(maka_: Run, tmp_path: Path) -> None:
    story = Story()
    story.start().step().says().end_step().end("failed")
    story.add("plan/proposed", {"proposal_id": "p", "revision": 1, "turn_id": "t1", "title": "it", "steps": []})
    story.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    path = story.write(tmp_path)
    raw = path.read_bytes()
    ran = maka_("session", "resume", path, "--json")
    assert (ran.json["recovered"]["interrupted"], ran.json["recovered"]["interrupted_plan"]) == ("e", "p")
    path.write_bytes(raw)
    assert "recovered 1 event appended, execution e of plan p interrupted" in rows(maka_("session", "resume", path).out)


def test_a_turn_that_was_asked_to_stop_waits_for_nobody(maka_: Run, tmp_path: Path) -> None:
    story = paused()
    stop = {"stop_id": "s", **story.ids, "source": "stop_button", "mode": "immediate"}
    story.add("turn/stop_requested", stop)
    path = story.write(tmp_path)
    told = maka_("journal", "inspect", path)
    assert told.code == 1
    assert "--handoff" not in told.out
    assert maka_("journal", "repair", path).code == 0
    assert maka.inspect(path).turns()[0]["status"] == "aborted"


HOSTILE = {"escape": "h\x9b2J\u202e; rm", "long": "h" * 256, "quotes": "h'\"`$(x)` "}
NEVER_SHOWN = {"\x1b", "\x9b", "\u202e"}


@pytest.mark.parametrize("handoff_id", HOSTILE.values(), ids=HOSTILE)
def test_ids_of_any_kind_are_harmless_and_settled_by_their_whole(maka_: Run, tmp_path: Path, handoff_id: str) -> None:
    path = paused(handoff_id=handoff_id, successor_run_id=f"r{handoff_id[1:]}").write(tmp_path)
    for words in (("inspect", path), ("inspect", path, "--events"), ("tail", path), ("show", path)):
        ran = maka_("journal", *words)
        assert not NEVER_SHOWN & set(ran.out + ran.err)
    assert json.loads(maka_("journal", "inspect", path, "--json").out)["handoffs"][0]["handoff_id"] == handoff_id
    ran = maka_("session", "settle", path, "--handoff", handoff_id)
    assert ran.code == 0
    assert not NEVER_SHOWN & set(ran.out + ran.err)
    assert maka.inspect(path).handoffs()[0]["state"] == "abandoned"


def test_an_id_that_no_pause_gives_is_told_harmlessly(maka_: Run, tmp_path: Path) -> None:
    path = paused(handoff_id="h\x1b[2J").write(tmp_path)
    for words in (("inspect", path), ("inspect", path, "--events"), ("tail", path), ("show", path)):
        ran = maka_("journal", *words)
        assert not NEVER_SHOWN & set(ran.out + ran.err)
    assert "handoff_id holds a control character" in " ".join(rows(maka_("journal", "inspect", path).out))
    assert maka.inspect(path).handoffs() == []
