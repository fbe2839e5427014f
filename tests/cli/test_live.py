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


# ---------------------------------------------------------------- what a host tells


def hosted(*told: Told, mine: tuple[str, ...] = ()) -> str:
    """What stands on standard output when a subscription told this: pieces of text, and events of the journal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    live = Live(Console(out, err, {}), gap=False, mine=mine)
    for type_, data in told:
        live.piece(data) if type_ == "delta" else live.event(type_, data)
    live.close()
    out.seek(0)
    return out.read()


def piece(text: str, offset: int, index: int = 0, kind: str = "text", **more: Any) -> Told:
    return "delta", {"kind": kind, "message_id": "m", "index": index, "offset": offset, "text": text, **more}


def message(*texts: str, kind: str = "text") -> Told:
    return "assistant/message", {"message_id": "m", "content": [{"kind": kind, "text": text} for text in texts]}


def test_pieces_that_are_told_again_are_shown_once() -> None:
    assert hosted(piece("It ", 0), piece("It is", 0), piece(" done.", 5), message("It is done.")) == "It is done.\n"
    assert hosted(piece("Ein €", 0), piece("€ und", 4), message("Ein € und 𝄞")) == "Ein € und 𝄞\n"


def test_a_message_shows_what_its_pieces_did_not() -> None:
    assert hosted(message("It is done.")) == "It is done.\n"
    assert hosted(piece("One", 0), message("One", "Two")) == "One\n\nTwo\n"
    assert hosted(piece("One", 0), piece("Two", 0, 1), message("One", "Two")) == "One\n\nTwo\n"
    assert hosted(piece("Hm", 0, kind="thinking"), piece("So", 0, 1), message("So")) == "Hm\n\nSo\n"


def test_a_block_that_is_void_is_begun_anew() -> None:
    assert hosted(piece("On", 0), piece("Two", 0, reset=True), message("Two")) == "On\n\nTwo\n"
    assert hosted(piece("On", 0), message("Two")) == "On\n\nTwo\n"
    again = piece("", 0, reset=True), piece("O", 0), piece("One", 0)
    assert hosted(piece("On", 0), *again, message("One")) == "One\n"


def test_the_next_message_may_stream_before_this_one_is_whole() -> None:
    first = "assistant/message", {"message_id": "l", "content": [{"kind": "text", "text": "One."}]}
    assert hosted(piece("Two", 0), first, piece(".", 3), message("Two.")) == "Two\n\nOne.\n\n.\n"


def test_a_call_has_the_arguments_with_which_it_was_asked_for() -> None:
    block = {"kind": "tool_call", "call_id": "c1", "name": "look", "arguments": '{"at":"it"}'}
    shown = hosted(
        ("assistant/message", {"message_id": "m", "content": [block]}),
        ("tool/call", {"call_id": "c1", "name": "look"}),
        ("tool/result", {"call_id": "c1", "state": "ok", "content": [{"kind": "text", "text": "a"}]}),
    )
    assert [row.rstrip() for row in shown.splitlines()] == ["", '→ look {"at":"it"}  c1', "← ok  c1", "  a"]


def test_messages_of_others_are_shown() -> None:
    said = ("user/message", {"message_id": "u", "content": [{"kind": "text", "text": "Hi."}]})
    assert hosted(said) == "user\n  Hi.\n"
    assert hosted(said, mine=("u",)) == ""


def test_a_call_that_was_met_before_it_began_has_its_arguments() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    live = Live(Console(out, None, {}))
    live.known([{"kind": "text", "text": "So."}, {"kind": "tool_call", "call_id": "c", "arguments": '{"at": 1}'}])
    live.event("tool/call", {"call_id": "c", "name": "look"})
    out.seek(0)
    assert '→ look {"at": 1}' in out.read()


def test_of_a_message_of_which_less_was_kept_than_was_shown_nothing_is_shown_again() -> None:
    assert hosted(piece("One two", 0), message("One")) == "One two\n"
    assert hosted(piece("One", 0), message("One two")) == "One two\n"
    assert hosted(piece("One two", 0), message("One or")) == "One two\n\nOne or\n"
