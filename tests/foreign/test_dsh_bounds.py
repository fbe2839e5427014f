"""Logs of DeepSeek Harness that were made to cost much, and results that come for calls which never ran."""

import tracemalloc
from collections.abc import Callable

import pytest
import zstandard

from maka.journal.foreign import dsh, zstd
from maka.journal.foreign.findings import Report
from maka.journal.source import BytesSource
from support.dsh_log import Log, text, wants
from support.foreign import folded


def branches() -> Log:
    """Many writers, each of which has seen nearly all of a long log."""
    log = Log()
    for number in range(3_000):
        log.user(f"said {number}")
    for number in range(900):
        log.user(f"again {number}", seq=2_990 - 2 * number)
    return log


def pieces() -> Log:
    """A reply of many small pieces, of which many are empty."""
    log = Log()
    log.start()
    log.user("go")
    for _ in range(60):
        log.row("text-chunks", [*(["ab"] * 5_000), *([""] * 5_000)])
    return log


@pytest.mark.parametrize("make", [branches, pieces])
def test_what_is_known_of_a_log_stays_small(make: Callable[[], Log], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsh, "_SHARED", 50_000)
    data = make().bytes()
    tracemalloc.start()
    try:
        for _ in dsh.read(BytesSource(data), Report(), "session.jsonl"):
            pass
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 12 << 20


def test_a_branch_that_knows_nothing_before_it_shows_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsh, "_SHARED", 0)
    log = Log()
    log.said("a", "b")
    first = log.seq
    log.said("c", "d")
    log.start(seq=first)
    log.user("so far", kind="plugin", surfaceOp={"op": "replace", "start": 2, "end": 3})
    log.end()
    found = folded(log.bytes(), "dsh")
    assert (found.codes(), found.threads["branch-1"].texts()[-1]) == (["misfit", "seq_fork"], "so far")


def test_all_frames_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "_ALL_ALWAYS", 10_000)
    monkeypatch.setattr(zstd, "_ALL_TIMES", 1)
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(b'{"a": 1}\n' * 500)
    with zstd.opened(BytesSource(frame * 5)) as source:
        assert source.size == 9_000
        assert {flaw.code for flaw in source.flaws} == {"bad_frame"}


def test_a_piece_may_be_of_any_type() -> None:
    log = Log(3)
    log.start()
    log.user("go")
    log.put("assistant/attempt", {"stream": [{"type": []}, {"type": {}}, None, {"chunk": {"type": []}}]})
    log.answer(text("done"))
    log.end()
    assert folded(log.bytes(), "dsh").main.texts() == ["go", "done"]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_result_of_a_call_that_never_ran_is_told_as_text(turns: int) -> None:
    log = Log()
    log.start()
    log.user("go")
    log.answer(wants("c1"))
    if turns == 2:
        log.end()
        log.start()
        log.user("on")
    log.answer(text("next"))
    log.result("c1", "seen after all")
    log.result("c1", "and again")
    log.end()
    found = folded(log.bytes(), "dsh")
    assert found.codes() == ["duplicate_result", "late_result"]
    assert found.main.results() == ["not_started"]
    assert found.main.texts()[-2:] == ["[A later result of the call c1 of look]", "seen after all"]


def test_a_call_without_dispatch_that_a_later_turn_follows_has_never_run() -> None:
    log = Log()
    log.start()
    log.user("go")
    log.answer(wants("c1"))
    log.end()
    log.said("on", "yes")
    found = folded(log.bytes(), "dsh")
    assert (found.codes(), found.main.results()) == (["not_started"], ["not_started"])
