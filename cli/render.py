"""Documents → text for people. No I/O.

Each function takes a document exactly as `--json` prints it and a painter, and gives lines. Values that come from a
journal may be any JSON at all, so they are read defensively and made harmless.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from shlex import quote
from typing import Any, Final

from . import under_way
from .conversation import OUTCOME_SOURCE
from .text import Painter, columns, count, line, moment, shorten_ids, size, table

Doc = Mapping[str, Any]
Lines = list[str]

#: Columns given to text that a journal holds, inside a table.
_CELL: Final = 72

#: Findings of one code that people are shown; programs get them all.
_FINDINGS: Final = 10
#: Runs of a turn, and steps of a plan, that people are shown.
_CHAIN: Final = 4
_STEPS: Final = 20

VERDICT_STYLE: Final = {
    "healthy": "green",
    "interrupted": "yellow",
    "torn": "yellow",
    "damaged": "alarm",
    "unsupported": "magenta",
    "unreadable": "alarm",
    "unchecked": "dim",
    "in use": "cyan",
}

#: The same of a session file of another tool, which no repair writes.
_FOREIGN_MEANING: Final = {
    "healthy": "nothing is open or damaged",
    "interrupted": "its tool stopped in the middle; an import closes what is open",
    "torn": "its last line is not whole; an import keeps it with the original",
    "damaged": "lines are damaged or lost; an import takes what can be read",
}

VERDICT_MEANING: Final = {
    "healthy": "nothing to repair",
    "interrupted": "a writer stopped in the middle; a repair only appends",
    "torn": "the last write did not finish; a repair sets its bytes aside",
    "damaged": "bytes or relations are wrong; a repair needs --salvage",
    "unsupported": "written by a newer or an extended version; nothing is written here",
    "unreadable": "no event can be read",
    "in use": "a writer is at work; what is open is under way, and no repair is due",
}

#: What a person has marked a session with, as words.
_MARKS: Final = {"archived": "archived", "flagged": "flagged", "has_unread": "unread"}

#: What else of a row of a listing is worth a mark: work that waits in the session.
_WORK: Final = {"pending_handoff": "pending handoff", "active_plan": "active plan"}
_AT_WORK: Final = {"waits": "waits for an answer", "runs": "running"}

#: How a handoff stands → what can be done about it.
_OF_HANDOFF: Final = {
    "pending": "resume it, or settle it",
    "claimed": "resume it, or settle it",
    "continued": "nothing more; see its successor",
    "abandoned": "nothing more; it was given up",
}

#: The first of these that was found decides what can be done; the remedies of the others are of no use yet.
_DECIDING: Final = ("unreadable", "unsupported", "damage", "repairable")

SEVERITY_STYLE: Final = {
    "notice": "dim",
    "info": "cyan",
    "warning": "yellow",
    "repairable": "yellow",
    "damage": "alarm",
    "unsupported": "magenta",
    "unreadable": "alarm",
}

STATE_STYLE: Final = {
    "completed": "green",
    "ok": "green",
    "answered": "green",
    "settled": "green",
    "continued": "green",
    "approved": "green",
    "failed": "red",
    "error": "red",
    "unknown": "yellow",
    "not_started": "yellow",
    "interrupted": "yellow",
    "indeterminate": "yellow",
    "repair_required": "yellow",
    "started_indeterminate": "yellow",
    "paused": "cyan",
    "pending": "cyan",
    "claimed": "cyan",
    "active": "cyan",
    "running": "cyan",
    "runs": "cyan",
    "waits": "yellow",
    "about": "cyan",
}


def inspection(doc: Doc, paint: Painter, *, words: str | None = None) -> Lines:
    """The answer of `inspect`. ``words``: the session as commands are to name it, by itself by its path."""
    words = words or quote(line(doc.get("path") or "TARGET"))
    doc = under_way.inspection(doc)
    out = _facts(doc, paint)
    out += _findings(doc, paint, words)
    for title, key, head, rows, right in _SECTIONS:
        # What a foreign file holds as lines is numbered as the events that an import makes of it.
        head = ["as events" if name == "events" and _is_foreign(doc) else name for name in head]
        out += _section(title, [row for item in _rows(doc, key) for row in rows(item)], head, paint, right)
    threads = [
        [line(row.get("kind"), 20), line(row.get("thread"), 60), line(row.get("turns")), line(row.get("calls"))]
        for row in _rows(doc, "threads")
    ]
    out += _section("branches and subagents", threads, ["kind", "thread", "turns", "calls"], paint, {2, 3})
    queue = _object(doc.get("queue"))
    waiting = [
        [kind, line(entry.get("message_id"), 40), line(entry.get("turn_id", "-"), 40), line(entry.get("seq"))]
        for kind in ("steering", "followup")
        for entry in _rows(queue, kind)
    ]
    out += _section("queue", waiting, ["kind", "message", "turn", "seq"], paint, {3})
    usage = [
        [line(key).replace("_", " "), f"{value:,}"]
        for key, value in _object(doc.get("usage")).items()
        if _int(value) and value
    ]
    out += _section("usage", usage, None, paint, {1})
    closers = "an import would close it with" if _is_foreign(doc) else "a repair would append"
    out += _section(closers, [_planned(event) for event in _rows(doc, "pending")], None, paint, {0})
    if "event_list" in doc:
        out += ["", paint("events", "bold")]
        out += events(_rows(doc, "event_list"), paint)
    return out + onward(doc, paint)


def onward(doc: Doc, paint: Painter) -> Lines:
    """What can be done next: each reason, and below it the commands that it is for."""
    commands: dict[str, list[str]] = {}
    for step in _rows(doc, "next"):
        named = commands.setdefault(line(step.get("why")), [])
        if step.get("command") is not None:
            named.append(line(step["command"]))
    rows = [
        row
        for why, named in commands.items()
        for row in (f"  {why}", *(f"    {paint('→', 'cyan')} `{command}`" for command in named))
    ]
    return ["", paint("next", "bold"), *rows] if rows else []


def _facts(doc: Doc, paint: Painter) -> Lines:
    verdict = line(doc.get("verdict"), 20)
    header = _object(doc.get("header"))
    head = _object(doc.get("head"))
    writer = _object(doc.get("writer"))
    foreign = _is_foreign(doc)
    meaning = (_FOREIGN_MEANING if foreign else VERDICT_MEANING).get(verdict)
    rows = [
        ["session", line(doc.get("session_id"))],
        ["path", line(doc.get("path"))],
        ["verdict", verdict + (f"  {meaning}" if meaning else "")],
    ]
    now = _object(doc.get("settings")) or header
    said = {"name": _name(now), "labels": _labels(now), "marked": _marks(now)}
    rows += [[title, shown] for title, shown in said.items() if shown]
    noun = "line" if foreign else "event"
    holds = f"{_number(doc.get('events')):,} {noun if doc.get('events') == 1 else noun + 's'}"
    if "bytes" in doc:
        holds += f", {size(_number(doc['bytes']))}"
    if head:
        holds += f", head {line(head.get('seq'))} {line(head.get('sum'), 32)}"
    rows.append(["holds", holds])
    if header:
        by = _object(header.get("created_by"))
        made = f"{line(now.get('model') or '-', 40)} ({line(now.get('backend') or '-', 40)})"
        rows.append(["model", f"{made}, permission {line(now.get('permission_mode') or '-', 20)}"])
        rows.append(["folder", line(now.get("cwd") or "-", 100)])
        if not foreign:
            rows.append(["written by", f"{line(by.get('name', '-'), 40)} {line(by.get('version', ''), 40)}"])
        parent = _object(header.get("parent"))
        if parent:
            rows.append(["fork of", f"{line(parent.get('session_id'), 128)} at {line(parent.get('seq'))}"])
    if writer:
        who = f"pid {line(writer.get('pid'))} on {line(writer.get('host'), 60)}, since {moment(writer.get('since'))}"
        who = who if writer.get("pid") is not None else "somebody who left no name"
        rows.append(["writer", f"{who} (a hint)"])

    def style(column: int, cell: str) -> str:
        if column == 0:
            return "dim"
        return VERDICT_STYLE[verdict] if verdict in VERDICT_STYLE and cell.startswith(verdict + "  ") else ""

    return table(rows, paint, styles=style, indent="")


def _is_foreign(doc: Doc) -> bool:
    return doc.get("threads") is not None


def _findings(doc: Doc, paint: Painter, words: str) -> Lines:
    findings = _rows(doc, "findings")
    if not findings:
        return []
    head = ["severity", "code", "line", "seq", "offset", "bytes", "what"]
    of_code: dict[str, int] = {}
    rows = []
    for finding in findings:
        code = _code(finding)
        of_code[code] = of_code.get(code, 0) + 1
        if of_code[code] > _FINDINGS and len(findings) > 2 * _FINDINGS:
            continue
        places = [_optional(finding.get(key)) for key in ("line", "seq", "offset", "length")]
        rows.append([line(finding.get("severity")), code, *places, _message(finding)])
    kept = [i for i in range(len(head)) if i not in (2, 3, 4, 5) or any(row[i] != "-" for row in rows)]

    def style(column: int, cell: str) -> str:
        return SEVERITY_STYLE.get(cell, "") if column == 0 else ""

    out = ["", paint("findings", "bold")]
    out += table(
        [[row[i] for i in kept] for row in rows],
        paint,
        head=[head[i] for i in kept],
        styles=style,
        right=frozenset(kept.index(i) for i in (2, 3, 4, 5) if i in kept),
    )
    shown: dict[str, int] = {}
    for row in rows:
        shown[row[1]] = shown.get(row[1], 0) + 1
    out += [
        f"  … and {times - shown[code]:,} more of {code}; --json lists them"
        for code, times in of_code.items()
        if times > shown[code]
    ]
    return out + _remedies(findings, words, paint)


def _code(finding: Doc) -> str:
    return f"{line(finding['was'])} ({line(finding.get('code'))})" if finding.get("was") else line(finding.get("code"))


def _message(finding: Doc) -> str:
    message, total = shorten_ids(line(finding.get("message"))), finding.get("count")
    # Some findings are one sentence about all of their kind and say the number themselves.
    return message + (f" (and more: {total:,} in all)" if _int(total) and str(total) not in message else "")


def _remedies(findings: Sequence[Doc], words: str, paint: Painter) -> Lines:
    """Each remedy once, with the codes that it is for, and with the command as it can be pasted."""
    deciding = next((kind for kind in _DECIDING if any(row.get("severity") == kind for row in findings)), None)
    codes: dict[str, list[str]] = {}
    for finding in findings:
        remedy, severity = finding.get("remedy"), finding.get("severity")
        if remedy and remedy != "nothing to do" and (severity == deciding or severity not in _DECIDING):
            of_remedy = codes.setdefault(line(remedy), [])
            if line(finding.get("code")) not in of_remedy:
                of_remedy.append(line(finding.get("code")))
    return [f"  {paint('→', 'cyan')} {', '.join(names)}: " + _pasted(what, words) for what, names in codes.items()]


def _pasted(remedy: str, words: str) -> str:
    """A remedy whose command names the session as it was typed."""
    remedy = remedy.replace("`maka journal repair", f"`maka journal repair {words}")
    return remedy.replace(" TARGET", f" {words}", 1).replace("import FILE`", f"import {words}`", 1)


def _section(
    title: str, rows: list[list[str]], head: list[str] | None, paint: Painter, right: Iterable[int] = ()
) -> Lines:
    if not rows:
        return []

    def style(column: int, cell: str) -> str:
        return STATE_STYLE.get(cell.partition(" ")[0], "") if head else ""

    return ["", paint(title, "bold"), *table(rows, paint, head=head, styles=style, right=frozenset(right))]


def _turn(turn: Doc) -> list[str]:
    runs = turn.get("run_ids")
    reason = _object(turn.get("reason"))
    detail = reason.get("failure_class") or reason.get("message") or reason.get("source") or ""
    return [
        _optional(turn.get("turn")),
        line(turn.get("turn_id"), 40),
        line(turn.get("status"), 20),
        f"{_optional(turn.get('first_seq'))}–{_optional(turn.get('last_seq'))}",
        _optional(turn.get("steps")),
        str(len(runs)) if isinstance(runs, list) else "-",
        _calls(_rows(turn, "calls")),
        line(detail, 40),
    ]


def _calls(calls: Sequence[Doc]) -> str:
    """`bash, read ×2, write: unknown`: counts for each tool and state, in the order of the calls."""
    counts: dict[tuple[str, str], int] = {}
    for call in calls:
        key = (line(call.get("name") or "?", 30), _stands(call))
        counts[key] = counts.get(key, 0) + 1
    shown = [
        name + (f" ×{times}" if times > 1 else "") + ("" if state == "ok" else f": {state}")
        for (name, state), times in counts.items()
    ]
    return line(", ".join(shown), _CELL) or "-"


def _stands(call: Doc) -> str:
    """`ok`, or `unknown → ok (stated by a person)`."""
    state = line(call.get("state"), 20)
    if call.get("outcome") is None:
        return "not answered" if state == "unknown" and call.get("name") == under_way.ASKING else state
    source = str(call.get("outcome_source"))
    said = OUTCOME_SOURCE.get(source)
    return f"{state} → {line(call['outcome'], 20)}" + (f" ({said})" if said else "")


def _run(run: Doc) -> list[str]:
    return [
        line(run.get("run_id"), 40),
        line(run.get("turn_id"), 40),
        line(run.get("status"), 20),
        line(run.get("failure_class") or "", 60),
    ]


def _continuation(claim: Doc) -> list[str]:
    source, target = _object(claim.get("source")), _object(claim.get("target"))
    return [
        line(claim.get("claim_id"), 40),
        line(claim.get("purpose"), 20),
        line(claim.get("state"), 30),
        line(source.get("run_id"), 40),
        line(target.get("run_id"), 40),
        line(claim.get("root_run_id"), 40),
        _optional(claim.get("depth")),
    ]


def _handoff(handoff: Doc) -> list[str]:
    left, state = handoff.get("remaining_steps"), line(handoff.get("state"), 20)
    return [
        line(handoff.get("handoff_id"), 40),
        state,
        line(handoff.get("run_id"), 40),
        line(handoff.get("successor_run_id"), 40),
        "any" if left is None else line(left, 20),
        _OF_HANDOFF.get(state, "-"),
    ]


def _execution(execution: Doc) -> list[str]:
    return [
        line(execution.get("turn_id"), 40),
        line(_object(execution.get("root")).get("kind") or "-", 40),
        _chain(execution.get("chain")),
        line(execution.get("tip"), 40),
        line(execution.get("status"), 20),
        line(execution.get("pending_handoff") or "-", 40),
    ]


def _chain(chain: object) -> str:
    """`r1 → r2 → r3`; of many runs the first and the newest ones."""
    runs = [shorten_ids(line(run_id, 40)) for run_id in chain] if isinstance(chain, list) else []
    if len(runs) > _CHAIN:
        runs = [runs[0], f"… {len(runs) - _CHAIN:,} more …", *runs[1 - _CHAIN :]]
    return " → ".join(runs) or "-"


def _interaction(interaction: Doc) -> list[str]:
    outcome = _object(interaction.get("outcome"))
    shown = outcome.get("reason") or outcome.get("decision") or outcome.get("answers") or ""
    return [
        line(interaction.get("interaction_id"), 40),
        line(interaction.get("kind"), 20),
        line(interaction.get("status"), 20),
        line(shown, 40),
    ]


def _plan(plan: Doc) -> list[list[str]]:
    """Its row, and below its title those of its steps."""
    execution, steps = _object(plan.get("execution")), _rows(plan, "steps")
    row = [
        line(plan.get("proposal_id"), 40),
        _optional(plan.get("revision")),
        line(plan.get("status"), 20),
        line(execution.get("status") or "-", 20),
        line(plan.get("title"), 50),
    ]
    shown = [f"  {number}. {line(step.get('title'), 60)}" for number, step in enumerate(steps[:_STEPS], 1)]
    if len(steps) > _STEPS:
        shown.append(f"  … and {len(steps) - _STEPS:,} more")
    return [row, *([*[""] * (len(row) - 1), each] for each in shown)]


def _one(row: Callable[[Doc], list[str]]) -> Callable[[Doc], list[list[str]]]:
    return lambda item: [row(item)]


_Section = tuple[str, str, list[str], Callable[[Doc], list[list[str]]], set[int]]
_SECTIONS: Final[tuple[_Section, ...]] = (
    ("turns", "turns", ["#", "turn", "status", "events", "steps", "runs", "calls", ""], _one(_turn), {0, 4, 5}),
    ("runs", "runs", ["run", "turn", "status", "class"], _one(_run), set()),
    (
        "continuations",
        "continuations",
        ["claim", "purpose", "state", "from run", "to run", "first run", "claims"],
        _one(_continuation),
        {6},
    ),
    ("handoffs", "handoffs", ["handoff", "state", "run", "successor", "steps left", "what to do"], _one(_handoff), {4}),
    (
        "turns that were handed over",
        "executions",
        ["turn", "began as", "runs", "newest run", "status", "waits for handoff"],
        _one(_execution),
        set(),
    ),
    ("interactions", "interactions", ["interaction", "kind", "status", "outcome"], _one(_interaction), set()),
    ("plans", "plans", ["proposal", "revision", "status", "execution", "title"], _plan, {1}),
)


# ---------------------------------------------------------------- repair, verify, list


def repair(doc: Doc, paint: Painter) -> Lines:
    """The answer of `repair`: what was done, or with `dry_run` what would be. Of another tool's session nothing is."""
    if doc.get("format") is not None:
        return []
    would = bool(doc.get("dry_run"))
    before, after = str(doc.get("verdict_before")), str(doc.get("verdict_after"))
    locked = bool(doc.get("locked"))
    set_aside, appended = _rows(doc, "set_aside"), _rows(doc, "appended")
    out = table(
        [["session", line(doc.get("session_id"))], ["path", line(doc.get("path"))]], paint, styles=_label, indent=""
    )
    if before == after:
        nothing = "nothing to do" if before == "healthy" and not locked else "nothing was done"
        nothing += ", a live writer has it locked" if locked else ""
        return [*out, f"{paint('verdict', 'dim')}  {_verdict(after, paint)}: {nothing}", *onward(doc, paint)]
    arrow = f"{_verdict(before, paint)} → {_verdict(after, paint)}"
    out.append(f"{paint('verdict', 'dim')}  {arrow}{' once done' if would else ''}")
    if set_aside:
        rows = [
            [f"offset {_number(cut.get('offset')):,}", size(_number(cut.get("length"))), line(cut.get("file"))]
            for cut in set_aside
        ]
        out += [
            "",
            paint("would set aside" if would else "set aside", "bold"),
            *table(rows, paint, right=frozenset({1})),
        ]
    if appended:
        rows = [_planned(event) for event in appended]
        out += ["", paint("would append" if would else "appended", "bold")]
        out += table(rows, paint, right=frozenset({0}))
    if not set_aside and not appended:
        out += ["", f"the last line {'would get' if would else 'got'} the LF that it lacked"]
    if would:
        out += ["", paint("nothing was written; run the same without --dry-run to do it", "dim")]
    return out + onward(doc, paint)


def _planned(event: Doc) -> list[str]:
    return [_optional(event.get("seq")), line(event.get("type"), 40), summary(event)]


def verification(doc: Doc, paint: Painter, *, words: str | None = None) -> Lines:
    """The answer of `verify`. ``words`` as for ``inspection``."""
    out = _facts(doc, paint) + _findings(doc, paint, words or quote(line(doc.get("path") or "TARGET")))
    unverified = doc.get("unverified")
    if isinstance(unverified, list) and unverified:
        shown = ", ".join(map(line, unverified[:20])) + (
            f" and {len(unverified) - 20:,} more" if len(unverified) > 20 else ""
        )
        out += ["", f"{paint('unverified', 'bold')}  {count(len(unverified), 'line')} that no sum proves: {shown}"]
    return out


def sessions(doc: Doc, paint: Painter) -> Lines:
    """The answer of `session list`: that of `list`, and what runs or waits."""
    return listing({"sessions": [_at_work(row) for row in _rows(doc, "sessions")]}, paint, {**_AT_WORK, **_WORK})


def _at_work(row: Doc) -> Doc:
    runs = bool(row.get("running"))
    cut_off = row.get("verdict") in ("unchecked", "interrupted", "torn")
    return {
        **row,
        "waits": bool(row.get("waiting")),
        "runs": runs and not row.get("waiting"),
        "verdict": "in use" if runs and cut_off else row.get("verdict"),
    }


def listing(doc: Doc, paint: Painter, work: Mapping[str, str] = _WORK) -> Lines:
    """The answer of `list`."""
    rows = [
        [
            line(row.get("session_id"), 128),
            line(row.get("verdict")),
            _optional(row.get("turns")),
            moment(row.get("last_activity")),
            ", ".join(filter(None, [_marks(row, {**_MARKS, **work}), _waiting(row)])),
            _name(row) or _title(row),
        ]
        for row in _rows(doc, "sessions")
    ]
    head = ["session", "verdict", "turns", "last activity", "marked", "name"]
    kept = [i for i, title in enumerate(head) if title != "marked" or any(row[i] for row in rows)]
    body = [[row[i] for i in kept] for row in rows]

    def style(column: int, cell: str) -> str:
        return VERDICT_STYLE.get(cell, "") if column == 1 else ""

    shown = [head[i] for i in kept]
    return table(body, paint, head=shown, styles=style, right=frozenset({2}), indent="") if rows else []


def _waiting(row: Doc) -> str:
    """How many messages wait in its queue."""
    return f"{row['queued']} queued" if _int(row.get("queued")) and row["queued"] else ""


def _title(row: Doc) -> str:
    return f"“{line(row['title'], 60)}”" if row.get("title") else ""


# ---------------------------------------------------------------- app

#: What a permission mode does with a tool's calls, in words for a cell.
_STANCE: Final = {"runs": "runs", "asks": "asks", "depends": "asks if it leaves"}
_STANCE_STYLE: Final = {"asks": "yellow", "asks if it leaves": "cyan"}


def application(doc: Doc, paint: Painter) -> Lines:
    """The answer of `app show`."""
    backends = doc.get("backends")
    named = [
        line(name, 60) + (" (default)" if name == doc.get("default_backend") else "")
        for name in (backends if isinstance(backends, list) else [])
    ]
    rows = [
        ["app", line(doc.get("app"))],
        ["named by", line(doc.get("named_by"))],
        ["backends", ", ".join(named)],
        ["can hand over", _handing(doc)],
        ["model", line(doc.get("model") or "-", _CELL)],
        ["permission mode", line(doc.get("permission_mode"), 20)],
        ["safety inspector", "yes" if doc.get("safety_inspector") else "-"],
    ]
    out = table(rows, paint, styles=_label, indent="")
    tools = _rows(doc, "tools")
    if not tools:
        return [*out, "", "it has no tools"]
    modes = list(_object(tools[0].get("permissions")))

    def style(column: int, cell: str) -> str:
        return _STANCE_STYLE.get(cell, "") if column > 2 else ""

    body = [
        [
            line(tool.get("name"), 40),
            line(tool.get("recovery"), 20),
            "yes" if tool.get("parallel_safe") else "-",
            *(_STANCE.get(str(said), line(said, 20)) for said in _object(tool.get("permissions")).values()),
        ]
        for tool in tools
    ]
    head = ["tool", "recovery", "parallel", *(f"in {mode}" for mode in modes)]
    return [*out, "", paint("tools", "bold"), *table(body, paint, head=head, styles=style)]


def _handing(doc: Doc) -> str:
    """The backends whose runs can be handed over, and those that do not tell before one is built."""
    told = _object(doc.get("handoff"))
    can = [line(name, 60) for name, said in told.items() if said is True]
    silent = [f"{line(name, 60)} does not tell" for name, said in told.items() if said is None]
    return ", ".join(can + silent) or "-"


# ---------------------------------------------------------------- host


def host_started(doc: Doc, paint: Painter) -> Lines:
    """The answer of `host start`."""
    how = "started" if doc.get("started") else "runs already"
    return [f"the host {paint(how, 'green')}", *_host(doc, paint)]


def host_status(doc: Doc, paint: Painter) -> Lines:
    """The answer of `host status`, of a host that answers."""
    found = _object(doc.get("sessions"))
    # Whoever asks is one of them.
    others = max(_number(doc.get("connections")) - 1, 0)
    counted = [
        ["up for", f"{_number(doc.get('uptime')):,} s"],
        ["other clients", str(others)],
        ["sessions recovered", _optional(found.get("recovered"))],
    ]
    out = _host(doc, paint, counted)
    active, failed = _rows(doc, "active"), _rows(found, "failed")
    if active:
        rows = [
            [
                *(line(row.get(key), 40) for key in ("session_id", "turn_id")),
                "waits for an answer" if row.get("waiting") else "runs",
                _optional(row.get("queued")),
            ]
            for row in active
        ]
        head = ["session", "turn", "status", "queued"]
        out += ["", paint("turns", "bold"), *table(rows, paint, head=head, right=frozenset({3}))]
    if failed:
        rows = [[line(row.get("session_id"), 128), line(row.get("message"), 300)] for row in failed]
        out += ["", paint("could not be recovered", "bold"), *table(rows, paint)]
    return out


def host_stopped(doc: Doc, paint: Painter) -> Lines:
    """The answer of `host stop`."""
    return [f"the host (process {_optional(doc.get('pid'))}) has ended"] if doc.get("stopped") else []


def _host(doc: Doc, paint: Painter, more: Sequence[list[str]] = ()) -> Lines:
    rows = [[key.replace("_", " "), line(doc[key], 200)] for key in _OF_HOST if doc.get(key) is not None]
    if doc.get("started_at") is not None:
        rows.append(["since", moment(doc["started_at"])])
    return table([*rows, *more], paint, styles=_label, indent="")


_OF_HOST: Final = ("root", "state", "pid", "app", "version", "endpoint")


# ---------------------------------------------------------------- events


def event(doc: Doc, paint: Painter) -> str:
    """One event as one line: number, time, type, what it is about."""
    mark = "" if doc.get("verified", True) else paint(" unverified", "yellow")
    kind = line(doc.get("type"), 40)
    blanks = " " * (22 - columns(kind))
    return (
        f"{_optional(doc.get('seq')):>6}  {paint(moment(doc.get('ts')), 'dim')}  "
        f"{paint(kind, 'cyan')}{blanks}  {summary(doc)}{mark}"
    ).rstrip()


def events(docs: Iterable[Doc], paint: Painter) -> Lines:
    return [event(doc, paint) for doc in docs]


#: What a person wants to see of an event first: keys of `data`, in this order.
_TELLING: Final = (
    "turn_id",
    "run_id",
    "step",
    "call_id",
    "claim_id",
    "handoff_id",
    "interaction_id",
    "message_id",
    "name",
    "kind",
    "state",
    "reason",
    "outcome",
    "status",
    "recovery",
    "stop_reason",
    "session_id",
    "model",
    "title",
    "patch",
)


#: Lists of which only the length is told.
_COUNTED: Final = {
    "spans": "damaged span",
    "missing": "missing range",
    "unverified": "unverified line",
    "accepted": "accepted finding",
    "message_ids": "message",
}


def summary(doc: Doc) -> str:
    """The few things of an event's data that tell what happened, and the beginning of its text."""
    data = _object(doc.get("data"))
    parts = []
    for key in _TELLING:
        value = data.get(key)
        if isinstance(value, Mapping):
            value = value.get("kind") or ", ".join(map(str, value)) or None
        if value not in (None, "", []):
            shown = line(value, 40)
            parts.append(f"{key.removesuffix('_id')} {shorten_ids(shown) if key.endswith('_id') else shown}")
    for key, noun in _COUNTED.items():
        if isinstance(data.get(key), list) and data[key]:
            parts.append(count(len(data[key]), noun))
    said = words(data.get("content")) or (data["text"] if isinstance(data.get("text"), str) else "")
    return "  ".join(parts) + (f"  {line(said, _CELL)!s}" if said else "")


def words(content: object) -> str:
    """The text of content blocks, one after the other."""
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    return " ".join(block["text"] for block in blocks if isinstance(block.get("text"), str))


# ---------------------------------------------------------------- helpers


def _verdict(verdict: str, paint: Painter) -> str:
    return paint(line(verdict), VERDICT_STYLE.get(verdict, ""))


def _name(settings: Doc) -> str:
    return line(settings.get("name") or "", 60)


def _labels(settings: Doc) -> str:
    labels = settings.get("labels")
    return line(", ".join(map(str, labels)), _CELL) if isinstance(labels, list) else ""


def _marks(values: Doc, words: Mapping[str, str] = _MARKS) -> str:
    return ", ".join(word for key, word in words.items() if values.get(key) is True)


def _label(column: int, cell: str) -> str:
    return "dim" if column == 0 else ""


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(doc: Doc, key: str) -> list[Mapping[str, Any]]:
    value = doc.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _optional(value: object) -> str:
    return "-" if value is None else line(value, 40)
