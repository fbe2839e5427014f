"""The document that people read: everything is in it, and nothing in it leaves its place."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal.export import markdown
from support.builder import Builder
from support.folds import history

Json = Any


def document(*entries: Json, **more: Json) -> str:
    return "".join(markdown(entries, **{"title": "x", **more}))


def entry(role: str, *content: Json, **more: Json) -> Json:
    return {"role": role, "seq": 1, "turn_id": "t1", "content": list(content), **more}


def text(said: str, **more: Json) -> Json:
    return {"kind": "text", "text": said, **more}


def outside(shown: str) -> list[str]:
    """The lines of a document that stand in no fence and no quotation."""
    lines, fence = [], ""
    for line in shown.split("\n"):
        if fence:
            fence = "" if re.fullmatch(f"{fence}`*", line) else fence
        elif opened := re.match("(```+)(json)?$", line):
            fence = opened[1]
        elif not line.startswith(">"):
            lines.append(line)
    assert not fence, "a fence is open at the end"
    return lines


def test_what_was_said_and_called() -> None:
    shown = "".join(markdown(history(Builder().tool_turn()).annotated(), "Mine", {"Model": "m", "Cwd": None}))
    assert shown.split("\n\n")[:5] == ["# Mine", "- Model: `m`", "## Turn 1", "### User", "> hi"]
    assert "<details>\n<summary>← ok (c1)</summary>\n\n```\ndone\n```\n\n</details>\n" in shown


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("hidden", "not shown to the model"),
        ("interrupted", "cut off"),
        ("summary", "a summary"),
        ("of later *versions*", r"of later \*versions\*"),
    ],
)
def test_marks(mark: str, says: str) -> None:
    assert f"### Assistant · *{says}" in document(entry("assistant", text("so"), mark=mark))


def test_hidden_parts_are_folded_and_all_there() -> None:
    shown = document(entry("user", text("secret"), mark="hidden"))
    assert "<summary>Not shown to the model</summary>\n\n> secret\n\n</details>" in shown


def test_notes_and_gaps() -> None:
    shown = document(entry("note", text("abort")), entry("gap", text("3 events missing")))
    assert "\n**Note**\n\n> abort\n" in shown
    assert "\n**Lost here**\n\n> 3 events missing\n" in shown


def test_results_without_text_images_and_shortened_texts() -> None:
    block = {"kind": "tool_result", "call_id": "c", "state": "error", "content": []}
    picture = {"kind": "image", "media_type": "image/png", "ref": "sha256:1"}
    shown = document(
        entry("tool", block, mark="outcome: user"),
        entry("tool", {**block, "content": [text("a…", ref="sha256:2"), picture]}),
        entry("user", picture),
        entry("assistant", {"kind": "thinking", "text": "hm"}),
    )
    assert "<summary>← error (c) · unknown at first; stated by a person</summary>\n\n*(no output)*\n" in shown
    assert "the whole text is the content `sha256:2`" in shown
    assert shown.count("*image: image/png, sha256:1*") == 2
    assert "<summary>Thinking</summary>\n\n```\nhm\n```" in shown


def test_what_is_not_known_is_not_told() -> None:
    turns = [{"turn_id": "t1", "turn": 1, "status": "completed", "begun": 0}]
    shown = document(entry("assistant", {"kind": "thinking", "text": ""}, text("so")), turns=turns)
    assert "\n## Turn 1\n" in shown
    assert "Thinking" not in shown


def test_line_breaks_of_every_kind_are_line_breaks() -> None:
    assert "\n> a\n> b\n>\n> c\n" in document(entry("user", text("a\rb\r\n\r\nc")))


ATTACKS = [
    "```\n# Out\n```",
    "````\n```\n# Out",
    "~~~\n# Out",
    "</details>\n# Out",
    "<script>x</script>",
    "<!-- x",
    "a\r# Out",
    "a\r\n\r\n# Out",
    "![x](http://example.com/x.png)",
    "[x]: http://example.com",
    "- a\n\n      b\n\n1. c",
    "x\u2028# Out",
    "` `` ``` ````",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_leaves_its_place(attack: str) -> None:
    blocks = [text(attack), {"kind": "thinking", "text": attack}, {"kind": attack, "name": attack}]
    call = {"kind": "tool_call", "call_id": attack, "name": attack, "arguments": attack}
    answer = {"kind": "tool_result", "call_id": attack, "state": attack, "content": blocks}
    shown = document(
        entry("user", *blocks),
        entry("assistant", *blocks, call, mark=attack),
        entry("tool", answer, mark=attack),
        entry("note", *blocks),
        title=attack,
        facts={attack: attack},
        turns=[{"turn_id": "t1", "turn": 1, "status": attack}],
    )
    lines = outside(shown)
    assert all(re.fullmatch(r"### (User|Assistant)( · \*.*\*)?|## Turn 1 · .*|# .*|[^#].*|", line) for line in lines)
    assert [line for line in lines if line.startswith("# ")] == lines[:1]
    assert lines.count("<details>") == lines.count("</details>")
    # What stands below the title is code, in ticks that do not stand in it.
    tags = [tag for line in lines if not line.startswith("- ") for tag in re.findall(r"(?<!\\)<[^ ]?\w+>?", line)]
    assert set(tags) == {"<details>", "</details>", "<summary>", "</summary>"}
    assert not any(
        re.search(r"(?<!\\)!\[|(?<!\\)\]:", line) for line in lines if not line.startswith(("<summary>", "- "))
    )
    quoted = [line for line in shown.split("\n") if line.startswith(">")]
    assert not any(re.search(r"<\w|</|<!|!\[|\]:", line) for line in quoted)
    assert "\r" not in shown


@given(st.text("`<>\n\r#!-[]a \\*_&~|\x1b\u202e\ud800", max_size=40))
def test_no_text_opens_or_closes_a_fence_of_the_document(said: str) -> None:
    call = {"kind": "tool_call", "call_id": said, "name": said, "arguments": said}
    answer = {"kind": "tool_result", "call_id": said, "state": "ok", "content": [text(said)]}
    shown = document(entry("user", text(said)), entry("assistant", text(said), call), entry("tool", answer), title=said)
    shown.encode()
    lines = outside(shown)
    assert lines.count("<details>") == lines.count("</details>") == 2
    assert [line for line in lines if line.startswith("##")] == ["## Turn 1", "### User", "### Assistant"]
