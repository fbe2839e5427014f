"""`maka journal export`: each form of a session, as it is or stood, and what is said where that cannot be."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.journal import blobs, legality
from support.builder import Builder
from support.command import Ran
from support.foreign_lines import claude

Run = Callable[..., Ran]
VALIDATORS: dict[str, Callable[[Any], list[legality.Violation]]] = {
    "anthropic": legality.anthropic,
    "openai-chat": legality.openai_chat,
    "openai-responses": legality.openai_responses,
}
CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"


def texts(form: Any) -> list[str]:
    """All texts of a form, in their order."""
    if isinstance(form, dict):
        return [value for key in form for value in ([form[key]] if key == "text" else texts(form[key]))]
    return [text for value in form for text in texts(value)] if isinstance(form, list) else []


def damaged() -> bytes:
    lines = Builder().plain_turn("one").plain_turn("two").lines
    return b"".join(line + b"\n" for line in (*lines[:4], lines[4][:50], *lines[5:]))


def png() -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 2, 2) + b"\x08\x02\0\0\0" + b"\0" * 16


@pytest.mark.parametrize("form", VALIDATORS)
def test_a_session_as_a_provider_takes_it(maka_: Run, tmp_path: Path, form: str) -> None:
    path = Builder().tool_turn().write(tmp_path / "root")
    before = path.read_bytes()
    ran = maka_("journal", "export", "s1", "--to", form)
    assert (ran.code, ran.err) == (0, "")
    assert VALIDATORS[form](ran.json) == []
    assert "hi" in ran.out
    assert "done" in ran.out
    assert maka_("journal", "export", path, "--to", form, "--json").out == ran.out
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["journal.jsonl"]


def test_a_session_as_a_document(maka_: Run, tmp_path: Path) -> None:
    builder = Builder(name="Fix *it*").tool_turn()
    builder.add("session/note", {"kind": "abort", "text": "stopped"})
    path = builder.start("and now?").step().write(tmp_path)
    ran = maka_("journal", "export", path, "--to", "markdown")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("# Fix \\*it\\*\n\n- Session: `s1`\n- Begun: `2026-09-21 14:13:20 UTC`\n")
    for piece in (
        "\n## Turn 1 · 2026-09-21 14:13:20 UTC\n",
        "\n## Turn 2 · interrupted · 2026-09-21 14:13:20 UTC\n",
        "\n### User\n\n> hi\n",
        "<summary>→ tool (c1)</summary>\n\n```json\n{}\n```\n",
        "<summary>← ok (c1)</summary>\n\n```\ndone\n```\n",
        "\n**Note**\n\n> abort: stopped\n",
    ):
        assert piece in ran.out, piece
    assert maka_("journal", "export", path, "--to", "markdown", "--json").json == {"markdown": ran.out}


def test_a_history_as_it_stood(maka_: Run, tmp_path: Path) -> None:
    path = Builder().plain_turn("one").tool_turn().plain_turn("three").write(tmp_path)
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    said = [event["seq"] for event in events if event["type"] == "user/message"]
    [called] = [event["seq"] for event in events if event["type"] == "tool/call"]

    def through(seq: int) -> list[str]:
        ran = maka_("journal", "export", path, "--to", "anthropic", "--through", str(seq))
        assert ran.code == 0
        assert legality.anthropic(ran.json) == []
        return texts(ran.json)

    assert through(0) == []
    assert through(said[0] - 1) == []
    assert through(said[0]) == ["one"]
    assert through(said[1] - 1) == ["one", "ok", "Continue."]
    *_, hi, unknown = through(called)
    assert hi == "hi"
    assert "outcome is unknown" in unknown
    assert through(called + 1)[-1] == "done"
    assert through(events[-1]["seq"]) == texts(maka_("journal", "export", path, "--to", "anthropic").json)
    document = maka_("journal", "export", path, "--to", "markdown", "--through", str(said[0])).out
    assert "Shown up to event" in document
    assert "three" not in document


def test_a_fork_as_it_stood_begins_with_its_parent(maka_: Run) -> None:
    path = CORPUS / "fork" / "sessions" / "fork" / "journal.jsonl"
    whole = texts(maka_("journal", "export", path, "--to", "openai-responses").json)
    inherited = texts(maka_("journal", "export", path, "--to", "openai-responses", "--through", "0").json)
    assert 0 < len(inherited) < len(whole)
    assert inherited == whole[: len(inherited)]


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"hello\n", 4, "the file holds no event"),
        (b'{"parentUuid":null,"type":"user","sessionId":"x"}\nhello\n', 0, "no message that can be read"),
        (b"", 0, "holds no message"),
    ],
)
@pytest.mark.parametrize("form", VALIDATORS)
def test_that_nothing_is_exported_is_said(
    maka_: Run, tmp_path: Path, content: bytes, code: int, says: str, form: str
) -> None:
    path = tmp_path / "rollout-1.jsonl"
    path.write_bytes(content)
    ran = maka_("journal", "export", path, "--to", form)
    assert (ran.code, texts(ran.json)) == (code, [])
    assert (says in ran.err, ran.err.count("\n")) == (True, 1)


def test_times_and_thinking_of_another_tool_s_session(maka_: Run, tmp_path: Path) -> None:
    path = tmp_path / "theirs.jsonl"
    thought = {"type": "thinking", "thinking": "so", "signature": "sealed"}
    path.write_bytes(claude().replace(b'[{"type": "text", "text": "one file"}]', json.dumps([thought]).encode()))
    document = maka_("journal", "export", path, "--to", "markdown").out
    assert "- Begun: `2026-02-01 10:00:01 UTC`\n" in document
    assert "## Turn 1 · 2026-02-01 10:00:01 UTC" in document
    array = tmp_path / "array.json"
    array.write_text('[{"role":"user","content":"hello"}]')
    document = maka_("journal", "export", array, "--to", "markdown").out
    assert ("1970" in document, "Model" in document) == (False, False)
    assert "> hello" in document
    path.write_bytes(
        claude().replace(b'[{"type": "tool_use"', b"[" + json.dumps(thought).encode() + b', {"type": "tool_use"')
    )
    ran = maka_("journal", "export", path, "--to", "anthropic", "--thinking")
    assert (ran.out.count('"sealed"'), ran.err) == (2, "")
    assert legality.anthropic(ran.json) == []


@pytest.mark.parametrize("seq", ["-1", "99"])
def test_an_event_that_is_not_there(maka_: Run, tmp_path: Path, seq: str) -> None:
    path = Builder().plain_turn().write(tmp_path)
    ran = maka_("journal", "export", path, "--to", "anthropic", "--through", seq)
    assert (ran.code, ran.out) == (2, "")
    assert f"--through {seq}: {path} has no event of that number; its newest event is 8" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["s1"], "--to"),
        (["s1", "--to", "html"], "'html' is no form; give one of anthropic, openai-chat, openai-responses, markdown"),
        (["s1", "--to", "anthropic", "--through", "x"], "--through"),
        (["nobody", "--to", "anthropic"], "there is no session 'nobody'"),
    ],
)
def test_wrong_usage(maka_: Run, tmp_path: Path, words: list[str], says: str) -> None:
    Builder().write(tmp_path / "root")
    ran = maka_("journal", "export", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err


def test_help(maka_: Run) -> None:
    ran = maka_("journal", "export", "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "Exit code" in ran.out


@pytest.mark.parametrize("form", [*VALIDATORS, "markdown"])
def test_damaged_journals_are_exported_and_others_refused_as_by_show(maka_: Run, tmp_path: Path, form: str) -> None:
    path = Builder().write(tmp_path, damaged())
    ran = maka_("journal", "export", path, "--to", form)
    assert (ran.code, ran.err) == (0, "")
    assert "two" in ran.out
    newer = Builder("s2", format=2).plain_turn().write(tmp_path)
    shown = maka_("journal", "show", newer)
    ran = maka_("journal", "export", newer, "--to", form)
    assert (ran.code, ran.err) == (shown.code, shown.err) == (4, shown.err)


# ---------------------------------------------------------------- options


def with_contents(root: Path, **header: Any) -> Path:
    builder = Builder("s1", **header)
    path = builder.write(root)
    content = [
        {"kind": "text", "text": "all…", "ref": blobs.put(path.parent, b"all of it"), "bytes": 9},
        {"kind": "image", "media_type": "image/png", "ref": blobs.put(path.parent, png())},
        {"kind": "image", "media_type": "image/png", "ref": blobs.put(path.parent, b"<svg/>")},
    ]
    builder.start().step()
    where = {**builder.ids, "message_id": "m9", "source": {"kind": "user"}}
    builder.add("user/message", {**where, "content": content})
    return builder.write(root)


@pytest.mark.parametrize("form", VALIDATORS)
def test_contents_are_read_from_the_session(maka_: Run, tmp_path: Path, form: str) -> None:
    path = with_contents(tmp_path / "root")
    plain = maka_("journal", "export", path, "--to", form)
    assert VALIDATORS[form](plain.json) == []
    assert "all…" in plain.out
    assert "[image removed: its bytes are not png" in plain.out
    assert "iVBORw0KGgo" in plain.out
    assert "all of it" in maka_("journal", "export", path, "--to", form, "--whole").out
    kept = maka_("journal", "export", path, "--to", form, "--keep-images")
    assert "image removed" not in kept.out
    assert "PHN2Zy8+" in kept.out


def test_contents_of_a_fork_are_its_parents_too(maka_: Run, tmp_path: Path) -> None:
    path = with_contents(tmp_path / "root", name="parent")
    last = json.loads(path.read_bytes().splitlines()[-1])
    parent = {"session_id": "s1", "seq": last["seq"], "sum": last["sum"]}
    Builder("child", parent=parent).plain_turn("mine").write(tmp_path / "root")
    ran = maka_("journal", "export", "child", "--to", "openai-chat", "--whole")
    assert "all of it" in ran.out
    assert "mine" in ran.out


def thoughtful(*models: str) -> Builder:
    builder = Builder()
    for number, model in enumerate(models):
        builder.start(f"question {number}").step()
        header = {"provider": "p", "model": model}
        where = {**builder.ids, "step": 1}
        if number:
            builder.add("request/header", {**where, "reason": "change", "header": header})
        content = [
            {"kind": "thinking", "text": "hm", "signature": "s"},
            {"kind": "tool_call", "call_id": "c", "name": "tool", "arguments": "{}"},
        ]
        said = {**where, "message_id": f"a{number}", "content": content, "stop_reason": "tool_use"}
        builder.add("assistant/message", said)
        builder.call("c")
        builder.result("c").end_step().end()
    return builder


def test_thinking_stays_where_one_model_was_asked(maka_: Run, tmp_path: Path) -> None:
    path = thoughtful("fake-model").write(tmp_path)
    assert '"hm"' not in maka_("journal", "export", path, "--to", "anthropic").out
    ran = maka_("journal", "export", path, "--to", "anthropic", "--thinking")
    assert (ran.code, ran.err) == (0, "")
    assert '{"type":"thinking","thinking":"hm","signature":"s"}' in ran.out
    ran = maka_("journal", "export", path, "--to", "openai-chat", "--thinking")
    assert '"reasoning_content":"hm"' in ran.out


def test_thinking_of_more_than_one_model_is_left_out(maka_: Run, tmp_path: Path) -> None:
    path = thoughtful("fake-model", "other").write(tmp_path)
    ran = maka_("journal", "export", path, "--to", "anthropic", "--thinking")
    assert ran.code == 0
    assert '"hm"' not in ran.out
    assert "2 models were asked in this session" in ran.err


def test_an_option_that_changes_nothing_is_said(maka_: Run, tmp_path: Path) -> None:
    path = Builder().plain_turn().write(tmp_path)
    ran = maka_("journal", "export", path, "--to", "openai-responses", "--thinking")
    assert (ran.code, legality.openai_responses(ran.json)) == (0, [])
    assert ran.err == "--thinking changes nothing of openai-responses; it is an option of anthropic, openai-chat\n"


def test_escape_sequences_of_a_journal_never_reach_the_terminal(maka_: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"
    builder = Builder("s1", model=evil, name=evil).start(evil).step().says(evil, [evil], arguments=evil)
    builder.call(evil, arguments=evil, name=evil)
    path = builder.write(tmp_path)
    for form in (*VALIDATORS, "markdown"):
        ran = maka_("journal", "export", path, "--to", form)
        assert ran.code == 0
        assert not {"\x1b", "\x07", "\r"} & set(ran.out + ran.err), form
    assert not {"\x9b", "\u202e"} & set(maka_("journal", "export", path, "--to", "markdown").out)
