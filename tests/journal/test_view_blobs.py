"""Which contents events name, and what a reader says of those that are not there."""

import hashlib
from pathlib import Path

import pytest

import maka
from maka.journal import blobs
from support.builder import Builder

REF = "sha256:" + hashlib.sha256(b"big").hexdigest()


def journal() -> Builder:
    built = Builder().start().step().says("", ["c"])
    built.call("c")
    content = [{"kind": "text", "text": "b…", "ref": REF, "bytes": 3}, {"kind": "text", "text": "x", "ref": 7}, "noise"]
    result = {**built.ids, "step": 1, "call_id": "c", "state": "ok", "content": content, "is_error": False}
    built.add("tool/result", result)
    return built.end_step().end()


def test_a_named_content_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    path = journal().write(tmp_path)
    (finding,) = maka.inspect(path).findings
    assert (finding.code, finding.severity, finding.seq) == ("blob_missing", "warning", 7)
    assert REF in finding.message
    assert maka.inspect(path).verdict == "healthy"
    assert blobs.put(path.parent, b"big") == REF
    assert not maka.inspect(path).findings


@pytest.mark.parametrize("ref", ["../../etc/passwd", "sha256:", "sha256:" + "g" * 64, "x" * 5000])
def test_a_name_that_is_none_never_leaves_the_folder(tmp_path: Path, ref: str) -> None:
    built = Builder().start()
    content = [{"kind": "file", "media_type": "text/plain", "ref": ref}]
    built.add("user/message", {"message_id": "m", **built.ids, "content": content, "source": {"kind": "steering"}})
    findings = maka.inspect(built.write(tmp_path)).findings
    assert [finding.code for finding in findings if finding.severity == "warning"] == ["blob_missing"]


def test_a_fork_is_not_asked_for_what_its_parent_names(tmp_path: Path) -> None:
    parent = journal()
    parent.write(tmp_path)
    fork = Builder("child", parent={"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev})
    assert not [f for f in maka.inspect(fork.write(tmp_path)).findings if f.code == "blob_missing"]
