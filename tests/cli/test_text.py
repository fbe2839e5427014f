"""Text for people: harmless, aligned, readable."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.cli import text

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]")


@given(st.text(st.characters()))
def test_a_line_never_drives_a_terminal(raw: str) -> None:
    assert not CONTROL.search(text.line(raw))


@given(st.text(st.characters()))
def test_a_paragraph_keeps_line_breaks_and_nothing_else_that_controls(raw: str) -> None:
    assert not CONTROL.search(text.paragraph(raw).replace("\n", ""))


@given(st.text(), st.integers(2, 40))
def test_a_line_is_cut_to_its_width(raw: str, width: int) -> None:
    assert text.columns(text.line(raw, width)) <= width


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("two\nlines\tand a tab\r", "two\\nlines\\tand a tab\\r"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\x9b31m", "\\x9b31m"),
        ("half \udcb2", "half \\udcb2"),
        ("日本", "日本"),
        (17, "17"),
        (None, "None"),
    ],
)
def test_what_is_shown_of_a_hostile_text(raw: object, shown: str) -> None:
    assert text.line(raw) == shown


def test_columns_line_up_whatever_the_width_of_their_characters() -> None:
    rows = text.table([["日本", "1"], ["abcdef", "22"]], text.plain, head=["word", "n"], right=frozenset({1}))
    assert rows == ["  word     n", "  日本     1", "  abcdef  22"]


def test_colours_do_not_move_columns() -> None:
    cells = [["a", "b"], ["long", "c"]]
    coloured = text.table(cells, text.paint, styles=lambda column, cell: "red" if column == 0 else "")
    assert [re.sub("\x1b\\[[0-9;]*m", "", row) for row in coloured] == text.table(cells, text.plain)
    assert "\x1b[31m" in coloured[0]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (4300, "4.2 KiB"), (5 << 30, "5.0 GiB"), (3 << 42, "12.0 TiB")],
)
def test_sizes(count: int, shown: str) -> None:
    assert text.size(count) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (1_790_000_000_123, "2026-09-21 14:13:20Z"),
        (1, "1970-01-01 00:00:00Z"),
        (0, "-"),
        (-1, "1969-12-31 23:59:59Z"),
        (10**18, "1000000000000000000"),
        (-(10**18), "-1000000000000000000"),
        (None, "-"),
        (True, "-"),
        ("soon", "-"),
    ],
)
def test_moments(ms: object, shown: str) -> None:
    assert text.moment(ms) == shown


@given(st.integers())
def test_any_number_has_a_moment(ms: int) -> None:
    assert text.moment(ms)
