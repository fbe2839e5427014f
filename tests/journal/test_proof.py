"""The short way of reading says what the long way says, for every file; also when a second process does the proving."""

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.journal import reader, scan, summary
from maka.journal.codec import ZERO
from maka.journal.events import Event
from maka.journal.proof import Chain, Proof, Prover
from maka.journal.scan import Fold, ScanResult
from maka.journal.source import BytesSource, Source
from maka.journal.state import State
from support.builder import Builder


def told(source: Source) -> tuple[dict[str, Any], list[Event]]:
    events: list[Event] = []

    def begin() -> scan.Consumer:
        events.clear()
        return events.append

    return shown(scan.scan(source, begin)), events


def shown(result: ScanResult) -> dict[str, Any]:
    header = result.header and attrs.asdict(result.header)
    lists = {"spans": list(result.spans), "unlisted": list(result.findings.unlisted)}
    return {**attrs.asdict(result, recurse=False), "header": header, **lists}


def fields(events: list[Event]) -> list[dict[str, Any]]:
    return [attrs.asdict(event) for event in events]


def realistic() -> Builder:
    journal = (
        Builder().plain_turn("grüße 日本").tool_turn().start().step().delta("Hel").delta("lo").says("", ["a", "b"])
    )
    journal.call("b")
    journal.result("b")
    journal.add("x-team/task", {"a": [1, {"b": None}]})
    journal.add("future/optional", {}, ignorable=True)
    journal.add("x-a/b", {"sum": "x", "data": {}, "seq": 4}, more=1)
    journal.add("x-a/b", {})
    return journal.tool_turn()


def damaged() -> Iterator[bytes]:
    """Files of every kind: whole, cut, changed in one and in several places, lines lost, copied, moved, welded."""
    journal = realistic()
    raw, lines, rng = journal.raw(), journal.lines, random.Random(11)
    yield raw
    yield raw * 2
    yield journal.raw(b"\r\n")
    yield b"\xef\xbb\xbf" + raw
    yield from (raw[: rng.randrange(len(raw))] for _ in range(150))
    for flips in (1, 1, 1, 2, 5):
        for _ in range(150):
            changed = bytearray(raw)
            for _ in range(flips):
                changed[rng.randrange(len(raw))] ^= rng.randint(1, 255)
            yield bytes(changed)
    for _ in range(150):
        mixed = list(lines)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(mixed))
            what = rng.randrange(5)
            if what == 0:
                del mixed[at]
            elif what == 1:
                mixed.insert(rng.randrange(len(mixed)), mixed[at])
            elif what == 2:
                mixed[at] += mixed[(at + 1) % len(mixed)]
            elif what == 3:
                mixed.insert(at, rng.choice((b"", b"junk", b"\0" * 40, b'{"seq":9')))
            else:
                mixed[at] = mixed[at][: rng.randrange(len(mixed[at]))]
        yield b"".join(line + b"\n" for line in mixed)
    yield from forks()
    yield from odd_lines()


def forks() -> Iterator[bytes]:
    left, right = Builder().plain_turn("a"), Builder().plain_turn("a")
    common = len(left.lines)
    left.plain_turn("left")
    right.plain_turn("right").tool_turn()
    for theirs, ours in ((left.lines, right.lines), (right.lines, left.lines)):
        yield b"".join(line + b"\n" for line in (*theirs, *ours[common:], *theirs[common:], *ours))


def odd_lines() -> Iterator[bytes]:
    """Lines whose sum fits and that no writer of this version writes."""
    step = '{"turn_id":"t","run_id":"r","step":1}'
    for middle in (
        f'"ts":1,"type":"step/start","data":{step},"data":{step}',
        f'"ts":1,"type":"step/start","data":{step},"ts":2',
        f'"ts":1,"type":"step/start","data":{step},"type":"step/end"',
        f'"ts":1,"type":"step/start","data":{step},"ignorable":false',
        f'"ts":1,"type":"step/start","data":{step},"ignorable":true',
        f'"ts":1,"type":"step/start","data":{step},"x":1',
        f'"ts":1,"type":"step/start","data":{step} ',
        f'"ts":1,"type":"step/start","data": {step}',
        f'"ts":1,"type":"step/start","data":{step[:-1]} }}',
        f'"ts":1.0,"type":"step/start","data":{step}',
        f'"ts":9223372036854775808,"type":"step/start","data":{step}',
        f'"ts":-5,"type":"step/start","data":{step}',
        f'"ts":1,"type":"step\\u002fstart","data":{step}',
        f'"type":"step/start","ts":1,"data":{step}',
        '"ts":1,"type":"step/start","data":{"turn_id":"t","run_id":"r","step":true}',
        '"ts":1,"type":"step/start","data":{"turn_id":"t","run_id":"r"}',
        '"ts":1,"type":"step/start","data":[]',
        '"ts":1,"type":"step/start","data":{"a":{}',
        '"ts":1,"type":"step/start","data":{"a":1},{"b":2}',
        '"ts":1,"type":"x-a/b","data":{"a":"\\ud800"}',
        '"ts":1,"type":"x-a/b","data":{"a":NaN}',
        '"ts":1,"type":"step/start","data":' + step[:-1] + ',"a":' + "[" * 199 + "]" * 199 + "}",
        '"ts":1,"type":"step/start","data":' + step[:-1] + ',"a":' + "[" * 200 + "]" * 200 + "}",
        '"ts":1,"type":"step/start","data":' + step[:-1] + ',"a":[' + "{}," * 300 + "0]}",
        f'"ts":1,"type":"step/start","data":{step},"more":1',
        f'"ts":1,"type":"step/start","data":{step},"more":0',
        f'"ts":1,"type":"step/start","data":{step},"more":01',
        f'"ts":1,"type":"step/start","data":{step},"more":1,"ignorable":true',
    ):
        journal = Builder().start()
        body = f'{{"seq":{journal.seq},{middle}'.encode()
        journal.prev = hashlib.sha256(journal.prev.encode() + body).hexdigest()[:32]
        journal.lines.append(body + b',"sum":"%b"}' % journal.prev.encode())
        journal.seq += 1
        yield journal.step().says("after").raw()


def long_way(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> tuple[dict[str, Any], list[Event]]:
    with monkeypatch.context() as patch:
        patch.setattr("maka.journal.scan._Pass.calm", lambda _: False)
        return told(BytesSource(raw))


def test_the_short_way_says_what_the_long_way_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for raw in damaged():
        want, events = long_way(monkeypatch, raw)
        got, given = told(BytesSource(raw))
        assert got == want, raw
        assert fields(given) == fields(events), raw


def test_live_text_folds_to_the_same_state_without_events() -> None:
    for raw in damaged():
        assert summary.to_json(folded(raw, live=True)) == summary.to_json(folded(raw, live=False)), raw


def folded(raw: bytes, live: bool) -> State:
    state = State()

    def begin() -> scan.Consumer | Fold:
        nonlocal state
        state = State()
        return Fold(state.apply, state.live) if live else state.apply

    scan.scan(BytesSource(raw), begin)
    return state


# ---------------------------------------------------------------- the second process


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_APART", 1)
    monkeypatch.setattr(reader, "can_prove_apart", lambda: True)


@pytest.mark.usefixtures("apart")
def test_a_second_process_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    whole = realistic().raw()
    files = list(damaged())
    for raw in (whole, whole[:-1], *random.Random(3).sample(files, 25)):
        path.write_bytes(raw)
        want, events = told(BytesSource(raw))
        with reader.open_source(path) as source:
            got, given = told(source)
        assert got == want, raw
        assert fields(given) == fields(events), raw


@pytest.mark.usefixtures("apart")
def test_where_no_process_can_be_started_the_file_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.jsonl"
    raw = realistic().raw()
    path.write_bytes(raw)
    for executable in ("/nonexistent/python", "/bin/false", "/bin/echo"):
        monkeypatch.setattr("sys.executable", executable)
        with reader.open_source(path) as source:
            assert told(source)[0] == told(BytesSource(raw))[0]


def test_a_prover_tells_of_every_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    journal = Builder()
    for _ in range(40):
        journal.tool_turn()
    path = tmp_path / "j.jsonl"
    path.write_bytes(journal.raw() + b"junk\n" + journal.raw())
    fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with path.open("rb") as file:
        prover = Prover(file.fileno(), 0, path.stat().st_size, -1, ZERO.encode())
        proofs = list(prover)
        prover.close()
    assert sum(map(len, proofs)) == len(journal.lines)
    assert [length for one in proofs for length in one.lengths] == list(map(len, journal.lines))
    assert b"".join(one.sums for one in proofs) == b"".join(line[-34:-2] for line in journal.lines)
    with pytest.raises(ChildProcessError):
        os.waitpid(prover._pid, os.WNOHANG)
    if fds:
        assert len(os.listdir("/proc/self/fd")) == fds


def test_a_prover_that_is_closed_early_ends(tmp_path: Path) -> None:
    journal = Builder()
    for _ in range(300):
        journal.tool_turn()
    path = tmp_path / "j.jsonl"
    path.write_bytes(journal.raw())
    with path.open("rb") as file:
        prover = Prover(file.fileno(), 0, path.stat().st_size, -1, ZERO.encode())
        next(iter(prover))
        prover.close()


def test_a_frame_that_is_not_whole_is_none(tmp_path: Path) -> None:
    chain = Chain(-1, ZERO.encode())
    one = chain.prove(realistic().lines)
    frame = one.write(chain.names)
    path = tmp_path / "frame"
    for size in (0, 7, 8, 60, len(frame) - 1, len(frame)):
        path.write_bytes(frame[:size])
        with path.open("rb") as frames:
            again = Proof.read(frames, [])
        assert (again is not None) == (size == len(frame))
    assert again is not None
    assert (again.names, again.sums, again.kinds) == (chain.names, one.sums, one.kinds)


def test_events_are_kept_beside_live_text() -> None:
    for raw in (realistic().raw(), *random.Random(5).sample(list(damaged()), 60)):
        kept: list[Event] = []

        def begin(kept: list[Event] = kept) -> Fold:
            kept.clear()
            state = State()
            return Fold(state.apply, state.live, kept)

        scan.scan(BytesSource(raw), begin)
        assert fields(kept) == fields(told(BytesSource(raw))[1]), raw


class Watched(list[bytes]):
    """Lines that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += isinstance(index, int)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))


def test_proving_from_far_behind_looks_at_nothing_before() -> None:
    lines = Watched([b"{}"] * 1000)
    assert not Chain(0, b"0" * 32).prove(lines, 900)
    assert lines.looks == 1
