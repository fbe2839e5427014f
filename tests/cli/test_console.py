"""Standard output and error: encodings, colours, readers that leave, and patience."""

import io
import os
import threading
from pathlib import Path
from typing import TextIO

import pytest

from maka.cli import console as module
from maka.cli.console import Console


class Screen(io.TextIOWrapper):
    """A terminal that remembers."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True, newline="")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        self.seek(0)
        return self.read()


def test_colours_need_a_terminal_and_no_objection() -> None:
    assert Console(Screen(), None, {}).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Console(Screen(), None, {"NO_COLOR": ""}).paint("x", "red") == "\x1b[31mx\x1b[0m"
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert Console(Screen(), None, environ).paint("x", "red") == "x"
    assert Console(io.TextIOWrapper(io.BytesIO()), None, {}).paint("x", "red") == "x"


def test_what_an_encoding_has_no_place_for_is_escaped() -> None:
    screen = Screen("ascii")
    Console(screen, None, {}).write(["→ é"])
    assert screen.shown == "\\u2192 \\xe9\n"


def test_a_document_is_utf_8_whatever_the_terminal_says() -> None:
    screen = Screen("ascii")
    Console(screen, None, {}).document({"a": "é"})
    assert screen.buffer.getvalue() == '{"a":"é"}\n'.encode()  # type: ignore[attr-defined]


def test_a_path_that_is_no_text_is_still_a_document() -> None:
    screen = Screen()
    Console(screen, None, {}).document({"path": os.fsdecode(b"/tmp/\xff")})
    assert screen.shown == '{"path":"/tmp/\\udcff"}\n'


def test_a_reader_that_left_is_noticed_and_forgiven() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        console = Console(out, None, {})
        console.write(["anybody?"])
        assert not console.open
        console.write(["nobody"])
        console.flush()


def test_an_output_that_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    out: TextIO
    with place.open("r+") as out:
        os.dup2(os.open(place, os.O_RDONLY), out.fileno())
        with pytest.raises(OSError, match="standard output"):
            Console(out, None, {}).write(["words"])


def test_without_streams_nothing_happens() -> None:
    console = Console(None, None, {})
    console.write(["words"])
    console.document({})
    console.say("words")
    console.flush()
    assert not console.open


def test_a_sentence_is_harmless() -> None:
    screen = Screen()
    Console(None, screen, {"NO_COLOR": "1"}).say("it\x1b[2J said\n\tso")
    assert screen.shown == "it\\x1b[2J said\\n\\tso\n"


def test_what_takes_long_is_told_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    monkeypatch.setattr(module, "_INTERVAL", 0.01)
    told = threading.Event()

    class Watched(Screen):
        def write(self, text: str) -> int:
            told.set()
            return super().write(text)

    screen = Watched()
    with Console(None, screen, {"NO_COLOR": "1"}).working("reading \x1b a journal"):
        assert told.wait(10)
    assert "reading \\x1b a journal … 0 s" in screen.shown
    assert screen.shown.endswith("\r\x1b[K")


def test_what_is_quick_is_not_told() -> None:
    screen = Screen()
    with Console(None, screen, {}).working("reading"):
        pass
    assert screen.shown == ""


def test_a_file_is_never_told_about_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    err = io.TextIOWrapper(io.BytesIO())
    with Console(None, err, {}).working("reading"):
        assert threading.active_count() == 1
    err.flush()
    err.seek(0)
    assert err.read() == ""
