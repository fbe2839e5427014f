"""A turn on the screen: what streams is shown once, whole, and harmless."""

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maka.cli.console import Console
from maka.cli.live import Live
from maka.cli.text import line
from maka.runtime.session_events import SessionEvent

Told = tuple[str, dict[str, Any]]


def shown(*told: Told) -> tuple[str, str]:
    """What stands on standard output and standard error when these events were told."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    live = Live(Console(out, err, {}))
    for kind, data in told:
        live.tell(SessionEvent(kind, "e", "t", 0, data))
    live.close()
    read = []
    for stream in (out, err):
        stream.seek(0)
        read.append(stream.read())
    return read[0], read[1]


def delta(text: str, index: int = 0, kind: str = "text", message: str = "m") -> Told:
    return f"{kind}_delta", {"message_id": message, "index": index, "text": text}


def whole(text: str, kind: str = "text", message: str = "m") -> Told:
    return f"{kind}_complete", {"message_id": message, "text": text}


def test_what_streamed_is_not_shown_again_when_it_is_complete() -> None:
    assert shown(delta("It "), delta("is done."), whole("It is done.")) == ("\nIt is done.\n", "")


def test_what_did_not_stream_is_shown_when_it_is_complete() -> None:
    assert shown(whole("It is done.")) == ("\nIt is done.\n", "")
    assert shown(delta("It "), whole("It is done.")) == ("\nIt is done.\n", "")


def test_where_pieces_were_lost_the_whole_is_shown() -> None:
    assert shown(delta("It "), delta("done."), whole("It is done.")) == ("\nIt done.\n\nIt is done.\n", "")


def test_blocks_and_messages_begin_lines_of_their_own() -> None:
    out, _ = shown(delta("Hm", kind="thinking"), delta("One", 1), delta("Two", 2), delta("Three", message="n"))
    assert out == "\nHm\n\nOne\n\nTwo\n\nThree\n"
    out, _ = shown(delta("One\n"), ("step_end", {}), whole("One\n"), whole("Two", message="n"))
    assert out == "\nOne\n\nTwo\n"


def test_calls_and_results_end_a_line_that_stands_open() -> None:
    content = [{"kind": "text", "text": "a\nb"}]
    out, _ = shown(
        delta("I look."),
        ("tool_start", {"call_id": "c1", "operation_id": "o", "name": "look"}),
        ("tool_result", {"call_id": "c1", "state": "ok", "content": content, "is_error": False}),
    )
    assert [row.rstrip() for row in out.splitlines()] == ["", "I look.", "", "→ look   c1", "← ok  c1", "  a", "  b"]


def test_a_request_that_is_tried_again_is_no_part_of_the_answer() -> None:
    out, err = shown(
        delta("I"), ("provider_retry", {"attempt": 1, "delay": 2.5, "failure_class": "provider_rate_limit"})
    )
    assert out == "\nI\n"
    assert err == "the provider failed (provider_rate_limit); asking again in 2.5 s\n"


def test_a_plan_is_named() -> None:
    assert shown(("plan_submitted", {"title": "40\nchairs"}))[0] == "\nplan  40\\nchairs\n"


@given(st.lists(st.text()), st.sampled_from(["text", "thinking"]))
def test_no_text_reaches_the_terminal_as_more_than_text(pieces: list[str], kind: str) -> None:
    out, _ = shown(*(delta(piece, kind=kind) for piece in pieces), whole("".join(pieces), kind))
    assert [line(row) for row in out.split("\n")] == out.split("\n")
