"""Text that streams: pieces of it by code points, each as long as a frame takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.runtime.host import texts
from maka.runtime.host.texts import TextStream

#: Characters of one to four bytes of UTF-8.
TEXT = st.text(st.sampled_from("aäπ€😀"), max_size=12)


def stream(*pieces: str) -> TextStream:
    made = TextStream(("text", "m", 0), "t", "r")
    for piece in pieces:
        made.append(piece)
    return made


def test_a_stream_is_what_was_appended() -> None:
    made = stream("ab", "", "ü😀")
    assert (made.text, made.length) == ("abü😀", 4)
    assert made.identity() == {"kind": "text", "turn_id": "t", "run_id": "r", "message_id": "m", "index": 0}


def test_a_piece_begins_and_ends_within_what_was_appended() -> None:
    made = stream("abc", "def", "ghi")
    assert made.piece(0, 9) == "abcdefghi"
    assert made.piece(2, 7) == "cdefg"
    assert made.piece(3, 6) == "def"
    assert made.piece(4, 5) == "e"
    assert made.piece(9, 9) == ""


@given(st.lists(TEXT, max_size=8), st.data())
def test_a_piece_is_the_text_there(pieces: list[str], data: st.DataObject) -> None:
    made, whole = stream(*pieces), "".join(pieces)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    assert made.piece(start, end) == whole[start:end]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(texts, "MAX_TEXT", 7)
    return 7


def taken(made: TextStream) -> list[str]:
    """All of it, piece by piece."""
    pieces, start = [], 0
    while start < made.length:
        pieces.append(made.piece(start, made.length))
        assert pieces[-1], "nothing came of what is there"
        start += len(pieces[-1])
    return pieces


def test_a_long_text_comes_in_pieces_that_fit(short: int) -> None:
    assert taken(stream("abcdefghij")) == ["abcdefg", "hij"]
    # Nothing is cut within a code point.
    assert taken(stream("abcdef€ghi")) == ["abcdef", "€ghi"]
    assert taken(stream("😀😀😀")) == ["😀", "😀", "😀"]


def test_pieces_fit_whatever_the_text_is() -> None:
    @given(st.lists(TEXT, max_size=8))
    def fit(pieces: list[str]) -> None:
        made = taken(stream(*pieces))
        assert "".join(made) == "".join(pieces)
        assert all(len(piece.encode()) <= 7 for piece in made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "MAX_TEXT", 7)
        fit()


def test_what_comes_later_changes_no_piece() -> None:
    made = stream("abc")
    end = made.length
    made.append("def")
    assert made.piece(0, end) == "abc"
