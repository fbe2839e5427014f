"""One session that holds a little of everything that the format knows, built by the format document alone."""

from typing import Any

from .builder import Builder, digest


def realistic() -> Builder:
    """Turns with tools, parallel calls, deltas, steering, an interaction, a stop, an admission, a claim, a handoff."""
    builder = Builder(name="everything", labels=["a", "ü"])
    builder.plain_turn("grüße\u2028 日本")

    # parallel calls, one of them reconciled later
    builder.start("two things at once").step().delta("I wi", "a2-1").delta("ll", "a2-1")
    builder.says("I will", ["a", "b", "a"])
    builder.call("a", recovery="read_only")
    builder.call("b", recovery="reconcile")
    builder.result("b", "done b").result("a", "failed", "error")
    builder.call("a")
    builder.result("a").end_step()
    builder.user("by the way", "steering").step(2)
    ask = {"interaction_id": "i1", **builder.ids, "kind": "question", "request": {"questions": []}}
    builder.says("", ["q"])
    builder.call("q")
    builder.add("interaction/requested", ask)
    answer = {"kind": "question_answer", "answers": ["yes"]}
    builder.add("interaction/resolved", {"interaction_id": "i1", "outcome": answer})
    builder.result("q").end_step().step(3).delta("hm", "a2-3", "thinking").says("done").end_step().end()

    # the queue, and an admission that took its message
    text = [{"kind": "text", "text": "later"}]
    queued = {"message_id": "q1", "placement": "next_turn", "disposition": "followup", "content": text}
    builder.add("message/accepted", {**queued, "digest": "0" * 64})
    builder.turn += 1
    admitted = {**builder.ids, "message_id": "q1", "previous_root_turn_id": "t2", "execution": {"kind": "root"}}
    builder.add("turn/admitted", {**admitted, "input": {"content": text}, "input_digest": "0" * 64})
    run = builder.run(builder.ids["run_id"], builder.ids["turn_id"])
    builder.add("run/created", {"run": run})
    start = {**builder.ids, "invocation_id": run["invocation_id"], "turn": builder.turn, "run": run}
    builder.add("turn/start", start, more=1)
    builder.user("later", message_id="q1").step().says("", ["x"])
    seq = builder.call("x", recovery="idempotent")
    stop = {"stop_id": "s1", **builder.ids, "source": "user", "mode": "immediate", "retract": []}
    builder.add("turn/stop_requested", stop)
    result = {**builder.ids, "step": 1, "call_id": "x", "operation_id": f"op-{builder.turn}-x", "state": "unknown"}
    builder.add("tool/result", {**result, "content": text, "is_error": True, "call_seq": seq})
    builder.end_step()
    builder.add("turn/end", {**builder.ids, "reason": {"kind": "aborted", "source": "user"}})
    builder.add("session/note", {"kind": "abort", **builder.ids, "source": "user"})
    builder.add("run/settled", {"run_id": builder.ids["run_id"]})
    outcome = {**builder.ids, "call_id": "x", "call_seq": seq, "operation_id": f"op-{builder.turn}-x", "state": "ok"}
    builder.add("tool/outcome", {**outcome, "content": text, "is_error": False, "source": "reconciled"})

    # a plan
    step = {"id": "1", "title": "one", "description": "first"}
    builder.add("plan/proposed", {"proposal_id": "p", "revision": 1, "turn_id": "t3", "title": "plan", "steps": [step]})
    builder.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    builder.add("plan/execution", {"execution_id": "e", "status": "completed"})
    builder.add("session/updated", {"patch": {"name": "renamed"}})
    builder.add("x-team/task", {"anything": [1, None, {"deep": True}]})

    interrupted(builder)
    handed_off(builder)
    return builder.plain_turn("the end")


def claim(builder: Builder, first: int, run: dict[str, Any], claim_id: str, turn: int, purpose: str) -> dict[str, Any]:
    """A claim on everything that the builder's current run has, its newest line being the terminal fact."""
    seq, sum_ = builder.seq - 1, builder.prev
    ids = {**builder.ids, "invocation_id": f"i-{builder.ids['run_id']}"}
    segment = {"session_id": builder.session_id, **ids, "first_seq": first, "last_seq": seq, "sum": sum_}
    source = {**ids, "high_water": seq}
    target = {**run, "continuation": {"claim_id": claim_id, "boundary_digest": sum_, "source": source}}
    data: dict[str, Any] = {"claim_id": claim_id, "purpose": purpose, "turn": turn, "boundary": {"segments": [segment]}}
    data |= {"boundary_digest": sum_, "replay_digest": "0" * 64, "replay_through_seq": seq, "source": source}
    builder.add("continuation/claim", {**data, "target_run": target, "claimed_at": builder.ts})
    builder.add("run/created", {"run": target})
    begin = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": purpose}
    begin |= {"claim_id": claim_id, "run_id": run["run_id"], "turn_id": run["turn_id"]}
    begin |= {key: data[key] for key in ("boundary_digest", "replay_digest", "source")}
    builder.add("continuation/start", begin)
    return target


def interrupted(builder: Builder) -> None:
    """A turn that a crash cut off and a continuation resumed."""
    first = builder.seq
    builder.start("go on after the crash").step().says("working").end_step().end("interrupted")
    turn = builder.turn + 1
    claim(builder, first, builder.run(f"r{turn}", f"t{turn}"), "cl", turn, "resume")
    builder.turn = turn
    builder.step(1).says("resumed").end_step().end()


def handed_off(builder: Builder) -> None:
    """A turn whose run was paused at a step boundary and finished by its successor."""
    first = builder.seq
    builder.start("a long one")
    hash_ = "sha256:" + digest("")
    names = ("base_system_prompt_hash", "tool_catalog_hash", "tool_availability_hash", "base_provider_options_hash")
    composition: dict[str, Any] = {"schema": 1, "composer_id": "test", "composer_revision": "1", "source_revisions": []}
    composition |= {**dict.fromkeys(names, hash_), "tool_names": ["tool"], "context_window": None}
    builder.add("run/composition", {"run_id": builder.ids["run_id"], "composition": composition})
    builder.step().says("half").end_step()
    pause = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", "host_epoch": "e", **builder.ids}
    pause |= {"root_run_id": builder.ids["run_id"], "successor_run_id": "rS", "successor_invocation_id": "i-rS"}
    builder.add("handoff/pause", {**pause, "claim_id": "cS", "remaining_steps": 5})
    turn_id = builder.ids["turn_id"]
    claim(builder, first, builder.run("rS", turn_id, max_steps=5), "cS", builder.turn, "handoff")
    ids = {"turn_id": turn_id, "run_id": "rS"}
    builder.add("run/composition", {"run_id": "rS", "composition": composition})
    builder.add("step/start", {**ids, "step": 2})
    content = [{"kind": "text", "text": "the other half"}]
    message = {**ids, "step": 2, "message_id": "aS", "content": content, "stop_reason": "end_turn"}
    builder.add("assistant/message", message)
    builder.add("step/end", {**ids, "step": 2})
    builder.add("turn/end", {**ids, "reason": {"kind": "completed"}})
    builder.add("run/settled", {"run_id": "rS"})
