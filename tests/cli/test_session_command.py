"""`maka session`: a session whose process was killed goes on, or is told why not; what nobody can know is stated."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from support.builder import Builder
from support.command import COMMAND, process
from support.orders import Orders

Run = Callable[..., Any]

RESUMED = {
    "session_id", "path", "recovered", "disposition", "rejection_reasons", "diagnostics", "source_run_id",
    "continuation", "turn",
}  # fmt: skip
APP = ("--app", "agent:app")


def codes(doc: dict[str, Any]) -> list[str]:
    return [row["code"] for row in doc["diagnostics"]]


def turns(orders: Orders) -> list[str]:
    return [turn["status"] for turn in maka.inspect(orders.journal).turns()]


def users(messages: list[dict[str, Any]]) -> int:
    return sum(message["role"] == "user" for message in messages)


# ---------------------------------------------------------------- killed in a tool's body


def test_a_call_that_was_cut_off_parks_until_a_person_has_stated_what_came_of_it(
    maka_: Run, resume: Run, orders: Orders
) -> None:
    orders.kill_at("tool")
    ran = resume(*APP, "--json")
    assert (ran.code, set(ran.json)) == (1, RESUMED)
    assert (ran.json["disposition"], ran.json["rejection_reasons"]) == ("park", ["dangling_tool_state"])
    assert ran.json["recovered"]["state"] == "repaired"
    assert ran.json["recovered"]["appended"] > 0
    assert ran.json["recovered"]["reconciled"] == 0
    assert (ran.json["continuation"], ran.json["turn"]) == (None, None)

    ran = resume(*APP)
    assert ran.code == 1
    assert "dangling_tool_state: " in ran.out
    [operation_id] = orders.data("tool/call", "operation_id")
    assert f"`maka session settle s --call {operation_id} --ok`" in ran.out
    assert "goes on from" not in ran.out

    ran = maka_("session", "settle", "s", "order 4711 is there", "--call", "c1", "--ok", "--json")
    assert ran.code == 0
    [event] = ran.json["appended"]
    assert (event["type"], event["data"]["state"], event["data"]["source"]) == ("tool/outcome", "ok", "user")

    told = maka_("journal", "inspect", "s").out
    assert "order: unknown → ok (stated by a person)" in told
    assert "[what was unknown at first: stated by a person]" in maka_("journal", "show", "s").out
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["disposition"], ran.json["rejection_reasons"]) == (0, "continue", [])
    assert ran.json["turn"]["status"] == "completed"
    assert ran.json["turn"]["run_id"] == ran.json["continuation"]["run_id"]
    assert ran.json["recovered"] == {
        "state": "unchanged", "appended": 0, "reconciled": 0, "interrupted": None, "interrupted_plan": None,
    }  # fmt: skip
    assert orders.orders() == ["40 chairs"]
    told = orders.requests()[-1]
    assert users(told) == 1
    assert "order 4711 is there" in json.dumps(told[-1])


def test_an_outcome_that_was_an_error_is_told_to_the_model(maka_: Run, resume: Run, orders: Orders) -> None:
    orders.kill_at("tool")
    ran = maka_("session", "settle", "s", "--call", "c1", "--error", "the shop knows of no order", "--json")
    assert ran.code == 0
    assert (ran.json["appended"][-1]["data"]["state"], ran.json["session_id"]) == ("error", "s")
    assert resume(*APP).code == 0
    assert "the shop knows of no order" in json.dumps(orders.requests()[-1])


def test_a_call_that_may_be_made_again_is_where_the_person_says_so(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOVERY", "idempotent")
    orders.kill_at("tool")
    assert resume(*APP).code == 1
    assert resume(*APP, "--rerun", "read_only").code == 1
    ran = resume(*APP, "--plan", "--rerun", "read_only,idempotent")
    assert ran.code == 0
    assert "1 call made again" in ran.out
    assert orders.orders() == ["40 chairs"]
    ran = resume(*APP, "--rerun", "idempotent", "--json")
    assert (ran.code, ran.json["turn"]["status"]) == (0, "completed")
    assert orders.orders() == ["40 chairs", "40 chairs"]


def test_a_tool_that_can_look_is_asked_in_recovery(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOVERY", "reconcile")
    orders.kill_at("tool")
    assert resume("--plan", *APP).code == 1
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["recovered"]["reconciled"]) == (0, 1)
    assert orders.orders() == ["40 chairs"]
    assert "the order is there" in json.dumps(orders.requests()[-1])


# ---------------------------------------------------------------- killed while the model speaks


def test_a_turn_that_was_cut_off_goes_on_and_no_message_is_sent_twice(maka_: Run, resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    ran = resume(*APP)
    assert ran.code == 0
    first, second, third = orders.requests()
    assert first == second, "the model is given what it was given before"
    assert (users(second), users(third)) == (1, 1)
    assert orders.orders() == ["40 chairs"]
    assert orders.types().count("user/message") == 1
    assert turns(orders) == ["interrupted", "completed"]
    assert "── turn 2  goes on from turn 1  " in maka_("journal", "show", "s").out

    told = [" ".join(row.split()) for row in ran.out.splitlines()]
    assert "I see to it." in told
    assert "→ order c1" in told
    assert "← ok c1" in told
    assert "I see to it. It is done.\\x1b[2J" in told
    assert "\x1b" not in ran.out
    assert told[-1].startswith("turn ")
    assert told[-1].endswith(" completed")
    assert ran.err == "the model was asked\n" * 2


def test_the_document_is_all_that_is_on_standard_output(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    ran = resume(*APP, "--json")
    assert (ran.code, set(ran.json)) == (0, RESUMED)
    assert ran.err == "the model was asked\n" * 2
    assert set(ran.json["turn"]) == {"turn_id", "run_id", "status", "reason"}
    assert set(ran.json["recovered"]) == {"state", "appended", "reconciled", "interrupted", "interrupted_plan"}
    assert (ran.json["session_id"], ran.json["path"]) == ("s", str(orders.journal))
    [source] = [run for run in maka.inspect(orders.journal).runs() if run["run_id"] == ran.json["source_run_id"]]
    assert source["status"] == "failed"


def test_there_is_nothing_to_go_on_with_where_nothing_was_cut_off(resume: Run, tmp_path: Path) -> None:
    path = Builder().plain_turn().write(tmp_path)
    ran = resume(*APP, "--json", target=path)
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["resume_candidate_missing"])
    assert (ran.json["source_run_id"], ran.json["recovered"]["state"]) == (None, "unchanged")
    assert "resume_candidate_missing: " in resume(*APP, target=path).out


def test_a_plan_says_what_it_goes_on_from_and_what_is_left_out(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.kill_at("text")
    told = resume(*APP, "--plan").out
    source = maka.inspect(orders.journal).runs()[-1]["run_id"]
    assert f"goes on from  run {source}, behind event 2 (the user's message)\n" in told
    assert "left out" not in told, "nothing of its text was written yet"
    monkeypatch.setenv("END", "fail")
    ran = resume(*APP)
    run, turn = maka.inspect(orders.journal).runs()[-1]["run_id"], maka.inspect(orders.journal).turns()[-1]["turn_id"]
    assert f"goes on as    run {run}, turn {turn}\n" in ran.out
    [seq] = [event.seq for event in maka.inspect(orders.journal).events if event.type == "assistant/message"]
    told = resume(*APP, "--plan").out
    assert f"goes on from  run {run}, behind event 2 (the user's message)\n" in told
    assert f"left out      event {seq}: I see to it." in told


def test_the_result_that_a_plan_stands_behind_is_named(maka_: Run, resume: Run, orders: Orders) -> None:
    orders.kill_at("tool")
    assert maka_("session", "settle", "s", "--call", "c1", "--ok").code == 0
    assert " (the result of c1)\n" in resume(*APP, "--plan").out


def test_a_beginning_of_an_id_is_enough(maka_: Run, resume: Run, orders: Orders) -> None:
    orders.kill_at("tool")
    [operation] = orders.data("tool/call", "operation_id")
    ran = maka_("session", "settle", "s", "it is there", "--call", operation[:4], "--ok", "--json")
    assert (ran.code, ran.json["call"]["call_id"], ran.json["call"]["name"]) == (0, "c1", "order")
    [run] = maka.inspect(orders.journal).runs()
    ran = resume(*APP, "--plan", "--run", f"{run['run_id'][:8]}…", "--json")
    assert (ran.code, ran.json["source_run_id"]) == (0, run["run_id"])
    assert resume(*APP, "--plan", "--run", run["run_id"][:3]).code == 2
    ran = resume(*APP, "--plan", "--run", run["turn_id"][:8])
    assert (ran.code, ran.out) == (2, "")
    assert f"is turn 1, and no run; its run is `--run {run['run_id']}`" in ran.err


def test_a_claim_is_found_by_its_beginning(maka_: Run, orders: Orders) -> None:
    orders.kill_at("text")
    orders.kill_at("after_continuation_start_committed", goes_on=True)
    [claim] = maka.inspect(orders.journal).continuations()
    ran = maka_("session", "settle", "s", "--claim", claim["claim_id"][:8])
    assert ran.code == 0
    assert f"settled: turn {claim['target']['turn_id']} has failed (continuation_indeterminate)" in ran.out
    assert ran.out.endswith("`maka session resume s --app MODULE:OBJECT`\n")


def test_the_run_that_is_named_is_the_one(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    source = resume(*APP, "--plan", "--json").json["source_run_id"]
    assert resume(*APP, "--run", source).code == 0
    ran = resume(*APP, "--run", source, "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["continuation_already_exists"])
    assert ran.json["source_run_id"] == source


def test_a_run_that_has_completed_is_answered_anew_only_where_that_is_meant(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    run = resume(*APP, "--json").json["turn"]["run_id"]
    before = orders.journal.read_bytes()
    ran = resume(*APP, "--run", run, "--plan")
    assert ran.code == 0
    assert f"source_completed: Run {run} has completed, and is answered anew" in ran.out
    ran = resume(*APP, "--run", run)
    assert ran.code == 1
    [sentence] = ran.err.splitlines()
    assert sentence.startswith(f"maka: nothing was run yet. Run {run} has completed")
    assert sentence.endswith("send a new message if that is not meant, and give `--again` if it is")
    assert "goes on as" not in ran.out
    ran = resume(*APP, "--run", run, "--json")
    assert (ran.code, codes(ran.json), ran.json["turn"]) == (1, ["source_completed"], None)
    assert orders.journal.read_bytes() == before
    assert resume(*APP, "--run", run, "--again", "--plan").code == 0
    ran = resume(*APP, "--run", run, "--again", "--json")
    assert (ran.code, ran.json["source_run_id"], ran.json["turn"]["status"]) == (0, run, "completed")


def test_a_run_that_was_cut_off_may_be_named_with_again_too(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    run = maka.inspect(orders.journal).runs()[-1]["run_id"]
    assert resume(*APP, "--run", run, "--again").code == 0


# ---------------------------------------------------------------- --plan


@pytest.mark.parametrize(("hold", "code"), [("text", 0), ("tool", 1)])
def test_a_plan_writes_nothing_at_all(resume: Run, orders: Orders, hold: str, code: int) -> None:
    orders.kill_at(hold)
    (orders.session / "snapshot.json").unlink(missing_ok=True)
    (orders.session / "journal.lock").unlink()
    raw, before = orders.journal.read_bytes(), orders.look()
    for words in ((*APP,), ("--json", *APP), ("--json",)):
        ran = resume("--plan", *words)
        assert ran.code == code
    assert orders.journal.read_bytes() == raw
    assert orders.look() == before
    assert ran.json["recovered"] is None
    assert ran.json["disposition"] == ("park" if code else "continue")
    assert "app_missing" in codes(ran.json)


# ---------------------------------------------------------------- what runs it


def test_without_an_app_a_plan_parks_but_nothing_runs(resume: Run, orders: Orders) -> None:
    orders.kill_at("tool")
    ran = resume()
    assert (ran.code, ran.err) == (1, "")
    assert "app_missing: no app is named" in ran.out


def test_that_no_app_is_named_is_said_where_it_matters(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    assert codes(resume("--plan", "--json").json) == ["app_missing"], "and not which tools are gone"
    [unknown] = resume("--plan", "--run", "r9", "--json").json["diagnostics"]
    assert unknown["code"] == "source_run_unreadable"
    assert unknown["message"].endswith(" Of its id a beginning is enough, of 4 characters at least.")
    assert resume(*APP).code == 0
    assert codes(resume("--plan", "--json").json) == ["continuation_already_exists"]


def test_to_run_without_an_app_is_refused_in_the_words_of_app_show(maka_: Run, resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    ran = resume("--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == maka_("app", "show").err
    assert "no app is named" in ran.err
    assert "continuation/claim" not in orders.types()


@pytest.mark.parametrize("name", ["agent", "agent:broken", "agent:nothing", "nowhere:app"])
def test_a_bad_app_is_refused_before_anything_is_written(resume: Run, orders: Orders, name: str) -> None:
    orders.kill_at("text")
    raw = orders.journal.read_bytes()
    ran = resume("--app", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert orders.journal.read_bytes() == raw


def test_a_backend_that_is_not_built_is_a_sentence_and_nothing_is_claimed(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    ran = resume("--app", "agent:exploding")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("maka: ")
    assert "ValueError: no key" in ran.err.splitlines()[-1]
    assert "continuation/claim" not in orders.types()
    assert "goes on as" not in ran.out, "no id is told of a run that there never was"
    ran = process("session", "resume", orders.session, "--app", "agent:exploding", "--json", cwd=orders.folder)
    assert (ran.checked().code, ran.out) == (2, "")


def test_a_backend_that_is_not_there_parks_unless_nobody_has_said_what_there_is(resume: Run, orders: Orders) -> None:
    orders.kill_at("text")
    ran = resume("--app", "agent:other", "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["backend_unknown"])
    assert resume("--app", "agent:other", "--plan").code == 1
    ran = resume("--plan", "--json")
    assert (ran.code, codes(ran.json)) == (0, ["app_missing"])


def test_a_tool_that_is_gone_parks(maka_: Run, resume: Run, orders: Orders) -> None:
    orders.kill_at("tool")
    assert maka_("session", "settle", "s", "--call", "c1", "--ok").code == 0
    ran = resume("--app", "agent:toolless", "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["tool_catalog_mismatch"])
    assert resume("--plan").code == 0, "nobody knows which tools there are, and it says so"


def test_the_configuration_of_the_root_names_the_app_and_that_of_a_path_does_not(
    resume: Run, orders: Orders, tmp_path: Path
) -> None:
    orders.kill_at("text")
    config = orders.root / "config.toml"
    config.write_text('[maka]\napp = "agent:app"\n')
    config.chmod(0o600)
    other = tmp_path / "other"
    shutil.copytree(orders.root, other)
    assert "no app is named" in resume("--root", tmp_path / "third", target=other / "sessions" / "s").err
    assert resume("--root", other).code == 0
    assert resume().code == 0


# ---------------------------------------------------------------- how the turn ends


@pytest.mark.parametrize(("end", "code", "status"), [("fail", 1, "failed"), ("max_tokens", 5, "max_tokens")])
def test_the_exit_code_says_how_the_turn_ended(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch, end: str, code: int, status: str
) -> None:
    orders.kill_at("text")
    monkeypatch.setenv("END", end)
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["turn"]["status"]) == (code, status)


def test_a_turn_that_is_as_long_as_it_may_be_goes_on_by_a_message(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.kill_at("text")
    monkeypatch.setenv("END", "max_tokens")
    ran = resume(*APP)
    assert ran.code == 5
    assert "a new message (`manager.send` of a program) goes on" in ran.out
    assert "maka session resume" not in ran.out


def test_a_turn_that_failed_says_why_and_goes_on_from_there(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.kill_at("text")
    monkeypatch.setenv("END", "fail")
    ran = resume(*APP)
    assert ran.code == 1
    assert "failed: provider_quota, there is no credit left" in ran.out
    told = [row.strip() for row in ran.out.splitlines()]
    assert told[-2:] == ["turn 2 failed; this goes on from there", "→ `maka session resume s --app agent:app`"]
    monkeypatch.delenv("END")
    ran = resume(*APP, "--json")
    assert (ran.code, len(ran.json["continuation"]["boundary"]["segments"])) == (0, 2)
    assert {users(told) for told in orders.requests()} == {1}


def test_a_turn_that_asks_a_person_is_stopped_with_the_mode_to_change(resume: Run, orders: Orders) -> None:
    orders.kill_at("text", mode="ask")
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["turn"]["status"]) == (1, "aborted")
    assert ran.json["turn"]["reason"]["source"] == "nobody_to_answer"
    assert codes(ran.json)[-1] == "answer_needed"
    [sentence] = [row for row in ran.err.splitlines() if row.startswith("maka: ")]
    assert "`order` waits for a permission" in sentence
    assert "`ask`" in sentence
    assert "maka app show" in sentence
    assert "--permission-mode" in sentence
    assert "`maka session resume s --app agent:app --permission-mode MODE`" in sentence
    assert orders.orders() == []
    ran = resume(*APP, "--permission-mode", "execute", "--json")
    assert (ran.code, ran.json["continuation"]["configuration"]["permission_mode"]) == (0, "execute")
    assert {users(told) for told in orders.requests()} == {1}


def test_a_mode_that_there_is_not_or_that_a_look_would_set_is_refused(resume: Run, orders: Orders) -> None:
    orders.kill_at("text", mode="ask")
    before = orders.journal.read_bytes()
    for words, said in (
        (("--permission-mode", "yolo"), "--permission-mode is one of ask, execute, bypass, not 'yolo'"),
        (("--permission-mode", "bypass", "--plan"), "--plan writes nothing"),
    ):
        ran = resume(*APP, *words)
        assert ran.code == 2
        assert said in ran.err
    assert resume("--permission-mode", "bypass").code == 2
    assert orders.journal.read_bytes() == before


@pytest.mark.parametrize(("app", "asks"), [("questioning", "Which colour?"), ("leaving", "to leave its sandbox")])
def test_whatever_a_turn_asks_it_is_stopped(resume: Run, orders: Orders, app: str, asks: str) -> None:
    orders.kill_at("text")
    ran = resume("--app", f"agent:{app}")
    assert ran.code == 1
    assert ran.out.splitlines()[-1].endswith(" aborted because nobody can answer here"), "what to do is in the sentence"
    assert ran.err.startswith("maka: the turn was stopped: it asks ")
    assert asks in ran.err
    assert "in a program that answers" in ran.err
    assert ran.err.count("\n") == 1


def test_there_is_a_sentence_for_whatever_a_turn_may_ask() -> None:
    from maka.cli.resume import _ASKS
    from maka.runtime.interaction_shapes import ANSWER_OF

    assert set(_ASKS) == {f"{kind}_request" for kind in ANSWER_OF}


def test_what_changes_between_plan_and_claim_ends_it_unclaimed(
    resume: Run, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.kill_at("text", app="inspected")
    monkeypatch.setenv("FLIP", "1")
    ran = resume("--app", "agent:inspected", "--json")
    assert (ran.code, ran.json["disposition"], ran.json["turn"]) == (1, "continue", None)
    assert codes(ran.json)[-1] == "workspace_identity_changed"
    assert ran.err.startswith("maka: ")
    assert "continuation/claim" not in orders.types()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_stop_the_turn(orders: Orders, number: signal.Signals, code: int) -> None:
    orders.kill_at("text")
    env = {**os.environ, "HOLD": "text", "MAKA_HOME": str(orders.root)}
    command = [*COMMAND, "session", "resume", "s", *APP, "--json"]
    with subprocess.Popen(
        command, cwd=orders.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        while child.stderr.readline() != "text\n":
            assert child.poll() is None
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (code, "")
    said = json.loads(out)["turn"]
    assert (said["status"], said["reason"]["source"]) == ("aborted", "user")
    [_, turn] = maka.inspect(orders.journal).turns()
    assert (turn["status"], turn["reason"]["source"]) == ("aborted", "user")
    assert maka.inspect(orders.journal).verdict == "healthy"


HARD = """
import asyncio
from maka.runtime import App, loop_backend
from maka.runtime.model import TextDelta

class Model:
    provider = "scripted"

    async def stream(self, request):
        yield TextDelta("I see.")
        while True:
            try:
                print("deaf", flush=True)
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

app = App(backends={"loop": loop_backend(Model())}, default_backend="loop")
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_answered_and_a_second_one_waits_for_nothing(orders: Orders, times: int) -> None:
    orders.kill_at("text")
    (orders.folder / "hard.py").write_text(HARD)
    env = {**os.environ, "HOLD": "text", "MAKA_HOME": str(orders.root)}
    name, point = ("agent:app", "text\n") if times == 1 else ("hard:app", "deaf\n")
    with subprocess.Popen(
        [*COMMAND, "session", "resume", "s", "--app", name], cwd=orders.folder, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        for _ in range(times):
            while child.stderr.readline() != point:
                assert child.poll() is None
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert err == ""
    told = [row.strip() for row in out.splitlines()]
    if times == 1:
        assert child.returncode == 130
        assert " aborted by user\n" in out
        assert told[-2:] == ["turn 2 was stopped; this goes on from there", f"→ `maka session resume s --app {name}`"]
    else:
        assert child.returncode == -signal.SIGINT
        assert told[-1] == "I see."
    assert process("journal", "repair", "s", env=env).code == 0


def test_a_reader_that_went_away_stops_nothing(orders: Orders) -> None:
    orders.kill_at("text")
    out, reader = os.pipe()
    os.close(out)
    env = {**os.environ, "MAKA_HOME": str(orders.root)}
    done = subprocess.run(
        [*COMMAND, "session", "resume", "s", *APP], cwd=orders.folder, env=env, stdout=reader, stderr=subprocess.PIPE,
        timeout=60, check=False,
    )  # fmt: skip
    os.close(reader)
    assert (done.returncode, done.stderr) == (0, b"the model was asked\n" * 2)
    assert turns(orders) == ["interrupted", "completed"]


# ---------------------------------------------------------------- nobody knows whether the model was asked


def test_an_indeterminate_start_parks_until_it_is_settled_and_the_run_that_came_of_it_goes_on(
    maka_: Run, resume: Run, orders: Orders
) -> None:
    orders.kill_at("text")
    orders.kill_at("after_continuation_start_committed", goes_on=True)
    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (1, ["continuation_started_indeterminate"])
    [claim] = maka.inspect(orders.journal).continuations()
    assert claim["state"] == "started_indeterminate"
    ran = resume(*APP)
    assert f"`maka session settle s --claim {claim['claim_id']}`" in ran.out

    ran = maka_("session", "settle", "s", "--claim", claim["claim_id"], "--json")
    assert ran.code == 0
    assert [event["type"] for event in ran.json["appended"]] == ["turn/end", "run/settled"]
    assert ran.json["appended"][0]["data"]["reason"]["failure_class"] == "continuation_indeterminate"
    ran = maka_("session", "settle", "s", "--claim", claim["claim_id"])
    assert (ran.code, ran.out) == (2, "")

    ran = resume(*APP, "--json")
    assert (ran.code, ran.json["source_run_id"]) == (0, claim["target"]["run_id"])
    assert len(orders.requests()) == 3
    assert users(orders.requests()[-1]) == 1


# ---------------------------------------------------------------- settle


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--claim", "a", "--call", "b", "--ok"),
        ("--call", "c1"),
        ("--call", "c1", "--ok", "--error", "no"),
        ("--claim", "a", "--ok"),
        ("--claim", "a", "--error", "no"),
        ("text", "--call", "c1", "--error", "no"),
        ("text", "--claim", "a"),
        ("--call", "c1", "--error", " "),
        ("--call", "", "--ok"),
        ("--claim", ""),
        ("--call", "c1", "--error"),
    ],
)
def test_words_that_do_not_go_together(maka_: Run, orders: Orders, words: tuple[str, ...]) -> None:
    orders.kill_at("tool")
    raw = orders.journal.read_bytes()
    ran = maka_("session", "settle", "s", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("; see `maka session settle --help`\n")
    assert orders.journal.read_bytes() == raw


@pytest.mark.parametrize(("words", "says"), [(("--call", "c9", "--ok"), "c1"), (("--claim", "k9"), "k9")])
def test_a_name_that_nothing_has_is_one_sentence(maka_: Run, orders: Orders, words: tuple[str, ...], says: str) -> None:
    orders.kill_at("tool")
    ran = maka_("session", "settle", "s", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("maka: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err


def test_the_first_word_on_a_call_stands(maka_: Run, orders: Orders) -> None:
    orders.kill_at("tool")
    ran = maka_("session", "settle", "s", "--call", "c1", "--ok")
    assert ran.code == 0
    assert "settled: order (c1) of turn 1: ok, stated by a person, for good\n" in ran.out
    assert "the model is told: The user states that this call succeeded.\n" in ran.out
    assert ran.out.endswith("`maka session resume s --app MODULE:OBJECT`\n"), "no app is configured here"
    raw = orders.journal.read_bytes()
    ran = maka_("session", "settle", "s", "--call", "c1", "--ok")
    assert ran.code == 0
    assert ran.out.startswith("order (c1) of turn 1 was settled already: ok, stated by a person\n  nothing was written")
    ran = maka_("session", "settle", "s", "--call", "c1", "--ok", "--json")
    assert (ran.code, ran.json["appended"], ran.json["call"]["outcome"]) == (0, [], "ok")
    ran = maka_("session", "settle", "s", "--call", "c1", "--error", "no")
    assert ran.code == 2
    assert "has its outcome already, ok" in ran.err
    assert orders.journal.read_bytes() == raw


# ---------------------------------------------------------------- where it is, and how it stands


def test_a_session_is_named_as_for_the_journal_commands(resume: Run, orders: Orders, tmp_path: Path) -> None:
    orders.kill_at("text")
    apart = tmp_path / "apart" / "x"
    apart.parent.mkdir(mode=0o700)
    shutil.copytree(orders.session, apart)
    single = tmp_path / "single" / "copy.jsonl"
    single.parent.mkdir(mode=0o700)
    shutil.copy(orders.journal, single)
    for target, path in [
        ("s", orders.journal),
        (orders.session, orders.journal),
        (orders.journal, orders.journal),
        (apart, apart / "journal.jsonl"),
        (apart / "journal.jsonl", apart / "journal.jsonl"),
        (single, single),
    ]:
        ran = resume(*APP, "--plan", "--json", target=target)
        assert (ran.code, ran.json["path"], ran.json["session_id"]) == (0, str(path), "s")
    for target in (orders.session, apart, single):
        ran = resume(*APP, "--json", target=target)
        assert (ran.code, ran.json["turn"]["status"]) == (0, "completed")
    for path in (orders.journal, apart / "journal.jsonl", single):
        assert [turn["status"] for turn in maka.inspect(path).turns()] == ["interrupted", "completed"]


@pytest.mark.parametrize("words", [(), ("--plan",)])
def test_a_live_session_is_not_touched(maka_: Run, resume: Run, orders: Orders, words: tuple[str, ...]) -> None:
    with orders.life("tool") as child:
        raw = orders.journal.read_bytes()
        ran = resume(*APP, *words)
        assert (ran.code, ran.out) == (3, "")
        assert f"process {child.process.pid}" in ran.err
        ran = maka_("session", "settle", "s", "--call", "c1", "--ok")
        assert (ran.code, ran.out) == (3, "")
        assert f"process {child.process.pid}" in ran.err
        assert orders.journal.read_bytes() == raw


def damaged() -> bytes:
    lines = Builder().plain_turn().plain_turn().lines
    return b"".join(line + b"\n" for line in (*lines[:4], lines[4][:50], *lines[5:]))


def unsupported() -> bytes:
    journal = Builder().plain_turn()
    journal.add("future/thing", {"a": 1})
    return bytes(journal.raw())


@pytest.mark.parametrize(
    "raw", [damaged(), unsupported(), b"", b"nothing\n"], ids=["damaged", "newer", "empty", "junk"]
)
def test_what_cannot_be_trusted_is_refused(maka_: Run, resume: Run, tmp_path: Path, raw: bytes) -> None:
    path = Builder().write(tmp_path, raw)
    for ran in (
        resume(*APP, target=path),
        resume(*APP, "--plan", "--json", target=path),
        maka_("session", "settle", path, "--call", "c1", "--ok"),
        maka_("session", "settle", path, "--claim", "k1"),
    ):
        assert (ran.code, ran.out) == (4, "")
        assert ran.err.startswith(f"maka: {path}")
        assert ran.err.count("\n") == 1
    assert path.read_bytes() == raw


def test_what_is_not_there(maka_: Run, resume: Run, orders: Orders) -> None:
    for ran in (resume(*APP), resume("--plan"), maka_("session", "settle", "s", "--call", "c1", "--ok")):
        assert (ran.code, ran.out) == (2, "")
        assert "there is no session 's'" in ran.err
    orders.kill_at("text")
    ran = resume(*APP, "--run", "r9", "--json")
    assert (ran.code, ran.json["rejection_reasons"]) == (2, ["source_run_unreadable"])
    assert "r9" in resume(*APP, "--run", "r9").out


@pytest.mark.parametrize(
    "words", [("--rerun", "never"), ("--rerun", ""), ("--plan", "extra"), ("--run",), ("--run", ""), ("--again",)]
)
def test_wrong_usage(resume: Run, orders: Orders, words: tuple[str, ...]) -> None:
    orders.kill_at("text")
    raw = orders.journal.read_bytes()
    ran = resume(*APP, *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("; see `maka session resume --help`\n")
    assert orders.journal.read_bytes() == raw


@pytest.mark.parametrize("word", ["verify", "tail", "inspect"])
def test_what_looks_at_a_session_is_found_where_journals_are(maka_: Run, word: str) -> None:
    ran = maka_("session", word, "s")
    assert (ran.code, ran.out) == (2, "")
    assert f"`maka journal {word}` is meant" in ran.err
    assert "No such command" in maka_("session", "dance").err


def test_help_and_completion(maka_: Run) -> None:
    ran = maka_("session")
    assert ran.code == 2
    assert "resume" in ran.err
    for command, words in {
        "resume": ("--run", "--again", "--plan", "--rerun", "--app", "--json", "--root", "Exit code", "Ctrl-C", "130"),
        "settle": ("--claim", "--call", "--ok", "--error", "--json", "--root", "Exit code", "130"),
    }.items():
        ran = maka_("session", command, "--help")
        assert ran.code == 0
        for word in words:
            assert word in ran.out
    for typed, position, expected in (("maka s", "1", ["session"]), ("maka session r", "2", ["resume"])):
        ran = process(env={"_MAKA_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": position})
        assert ran.out.split() == expected


def test_other_commands_load_nothing_of_it(tmp_path: Path) -> None:
    program = (
        "import json, sys\nfrom maka.cli.app import run\n"
        "assert run(['journal', 'list', '--json']) == 0\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('maka.runtime') or name == 'asyncio']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(ran.stdout.splitlines()[-1]) == []
