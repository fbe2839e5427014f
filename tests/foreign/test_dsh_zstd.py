"""A log of DeepSeek Harness as it lies on the disk: compressed, frame by frame."""

import os
import sys
import tracemalloc
import types
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal.errors import JournalError
from maka.journal.foreign.detect import detect
from maka.journal.foreign.zstd import opened
from maka.journal.reader import open_source
from maka.journal.source import BytesSource
from support.dsh_log import Log
from support.foreign import folded


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def log() -> Log:
    log = Log()
    log.said("a", "b")
    log.said("c", "d")
    return log


def frames(log: Log) -> list[bytes]:
    """As they are written: the header by itself, then a frame for each batch."""
    lines = log.bytes().splitlines(keepends=True)
    return [frame(lines[0]), *(frame(b"".join(lines[at : at + 3])) for at in range(1, len(lines), 3))]


def unpacked(data: bytes) -> tuple[bytes, list[tuple[str, int, int]]]:
    with opened(BytesSource(data)) as source:
        return source.read(0, source.size), [(flaw.code, flaw.offset, flaw.length) for flaw in source.flaws]


def test_frames_are_one_file() -> None:
    data = b"".join(frames(log()))
    assert detect(BytesSource(data)) == "dsh"
    assert unpacked(data) == (log().bytes(), [])
    found = folded(data, "dsh", "session.jsonl.zstd")
    assert found.codes() == []
    assert found.main.texts() == ["a", "b", "c", "d"]


def test_any_part_of_it_is_read() -> None:
    whole = log().bytes()
    with opened(BytesSource(b"".join(frames(log())))) as source:
        assert source.size == len(whole)
        assert source.read(10, 20) == whole[10:30]
        assert source.read(len(whole) - 5, 100) == whole[-5:]
        assert source.read(len(whole) + 5, 100) == b""
        assert source.prover(0, 0, b"") is None


def test_frames_that_hold_nothing_are_passed_over() -> None:
    first, *rest = frames(log())
    skipped = b"\x53\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"nothing"
    assert unpacked(b"".join([first, skipped, frame(b""), *rest])) == (log().bytes(), [])


def test_a_last_frame_that_was_cut_off_is_a_torn_tail() -> None:
    *whole, last = frames(log())
    at = sum(map(len, whole))
    for length in range(1, len(last)):
        data, flaws = unpacked(b"".join(whole) + last[:length])
        assert flaws == [("torn_tail", at, length)]
        assert log().bytes().startswith(data)
        assert data.endswith(b"\n")
    found = folded(b"".join(whole) + last[:-6], "dsh")
    assert found.codes() == ["open_turn", "torn_tail"]
    [torn] = [finding for finding in found.report.findings if finding.code == "torn_tail"]
    assert (torn.offset, torn.length, torn.severity) == (at, len(last) - 6, "repairable")


def test_of_a_frame_that_was_cut_off_whole_lines_are_kept() -> None:
    lines = [b'{"type":"x","seq":%d,"data":"%s"}\n' % (at, os.urandom(40_000).hex().encode()) for at in range(8)]
    whole = frame(b"".join(lines))
    data, flaws = unpacked(whole[: len(whole) * 3 // 4])
    kept = data.splitlines(keepends=True)
    assert 0 < len(kept) < 8
    assert kept == lines[: len(kept)]
    assert [code for code, *_ in flaws] == ["torn_tail"]


def test_a_whole_frame_with_a_wrong_checksum_is_damage_and_the_others_are_read() -> None:
    parts = frames(log())
    at = sum(map(len, parts[:2]))
    parts[2] = parts[2][:-1] + bytes([parts[2][-1] ^ 1])
    data, flaws = unpacked(b"".join(parts))
    assert flaws == [("bad_frame", at, len(parts[2]))]
    lines = log().bytes().splitlines(keepends=True)
    assert data == b"".join(lines[:4] + lines[7:])
    assert "bad_frame" in folded(b"".join(parts), "dsh").codes()
    # The last one too: it is there to its end.
    parts = frames(log())
    parts[-1] = parts[-1][:-1] + bytes([parts[-1][-1] ^ 1])
    assert [code for code, *_ in unpacked(b"".join(parts))[1]] == ["bad_frame"]


@pytest.mark.parametrize("junk", [b"\0" * 50, b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" * 9])
def test_what_stands_between_frames_is_damage_and_the_others_are_read(junk: bytes) -> None:
    first, *rest = frames(log())
    data, flaws = unpacked(first + junk + b"".join(rest))
    assert data == log().bytes()
    assert flaws == [("bad_frame", len(first), len(junk))]


def test_a_wrong_length_takes_no_frame_with_it() -> None:
    parts = frames(log())
    second = bytearray(parts[1])
    # The first block's length, behind magic, descriptor, and the one or two bytes of the content's size.
    second[4 + 1 + (1, 2)[second[4] >> 6]] ^= 0x80
    data, flaws = unpacked(b"".join([parts[0], bytes(second), *parts[2:]]))
    lines = log().bytes().splitlines(keepends=True)
    assert data == b"".join(lines[:1] + lines[4:])
    assert {code for code, *_ in flaws} == {"bad_frame"}


def test_a_frame_that_holds_far_too_much_is_damage() -> None:
    bomb = frame(bytes(200 << 20))
    tracemalloc.start()
    try:
        data, flaws = unpacked(frame(b"{}\n") + bomb)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (data, [code for code, *_ in flaws]) == (b"{}\n", ["bad_frame"])
    assert most < 32 << 20


def test_hostile_bytes_are_walked_over_once() -> None:
    for data in (b"\x28\xb5\x2f\xfd" * 200_000, b"\x28\xb5\x2f\xfd\x00\x58" + b"\x0a\0\0a" * 200_000, bytes(1 << 20)):
        assert len(unpacked(data)[1]) == 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_spoiled_bytes_are_told_and_are_no_error(data: st.DataObject) -> None:
    whole = b"".join(frames(log()))
    spoiled = bytearray(whole)
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    found, flaws = unpacked(bytes(spoiled))
    assert flaws or found == log().bytes()
    for _ in range(3):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    folded(bytes(spoiled[: data.draw(st.integers(0, len(spoiled)))]), "dsh")


def test_where_nothing_unpacks_it_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "session.jsonl.zstd"
    path.write_bytes(b"".join(frames(log())))
    for name in ("compression", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with open_source(path) as source, pytest.raises(JournalError, match="pip install zstandard") as caught:
        opened(source)
    assert caught.value.path == str(path)


def test_where_there_is_no_room_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("maka.journal.foreign.zstd._Unpacking.run", full)
    with pytest.raises(JournalError, match="No space left on device; make room there"):
        unpacked(frame(b"{}\n"))


def test_what_python_itself_has_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 14):
        # Stands in for the module of later versions, as far as it is used.
        module = types.SimpleNamespace(
            ZstdFile=lambda file: zstandard.ZstdDecompressor().stream_reader(file), ZstdError=zstandard.ZstdError
        )
        monkeypatch.setitem(sys.modules, "compression", types.SimpleNamespace(zstd=module))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert unpacked(b"".join(frames(log()))) == (log().bytes(), [])
