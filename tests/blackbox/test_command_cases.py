"""The command on files, locks, places and people: exit codes, documents, lists, following."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.answers import codes, finding, inspect, maka, messages, repair, settled, tree, untouched, verify
from support.builder import Builder, seal

COMMAND = [sys.executable, "-m", "maka.cli"]


def healthy() -> Builder:
    return Builder().plain_turn().tool_turn()


def open_turn() -> Builder:
    return Builder().plain_turn().start().step()


def spawn(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, check=False, text=True, timeout=60, **options
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


# ---------------------------------------------------------------- the command as a process


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (healthy, (0, 0, 0, 0, 0, 0)),
        (open_turn, (1, 0, 1, 0, 0, 0)),
    ],
)
def test_exit_codes_of_real_processes(tmp_path: Path, make: Callable[[], Builder], wanted: tuple[int, ...]) -> None:
    path = make().write(tmp_path)
    commands = (["inspect"], ["verify"], ["repair", "--dry-run"], ["show"], ["tail"], ["repair"])
    for command, code in zip(commands, wanted, strict=True):
        done = spawn("journal", *command, path, "--json")
        assert done.returncode == code, (command, done.stderr)
        if command != ["tail"]:
            json.loads(done.stdout)
        for line in done.stdout.splitlines():
            json.loads(line)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["journal"],
        ["journal", "inspect"],
        ["journal", "inspect", "--nonsense", "x"],
        ["journal", "inspect", "a", "b"],
        ["journal", "repair", "no-such-session"],
        ["journal", "verify", "/nowhere/at/all.jsonl"],
        ["journal", "show", ""],
        ["journal", "tail", "x" * 5000],
        ["journal", "inspect", "/" + "x" * 5000],
        ["journal", "inspect", "../../etc/passwd\x01"],
        ["journal", "list", "--root"],
    ],
)
def test_wrong_usage_is_two_and_one_sentence(tmp_path: Path, words: list[str]) -> None:
    answer = maka(*words)
    assert answer.code == 2, answer.err
    assert answer.out == ""
    assert answer.err


def test_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = open_turn()
    path = builder.write(tmp_path)
    monkeypatch.chdir(path.parent)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("MAKA_HOME", str(tmp_path))
    targets: list[list[Any]] = [
        *([path], [path.parent], ["s1"], ["s1", "--root", tmp_path], ["./journal.jsonl"], ["journal.jsonl"], ["."]),
        [f"{path.parent}/"],
    ]
    for target in targets:
        answer = maka("journal", "inspect", *target, "--json")
        assert answer.code == 1, (target, answer.err)
        assert answer.json["session_id"] == "s1"
    assert maka("journal", "inspect", "s1", "--root", tmp_path / "other").code == 2


@pytest.mark.parametrize("target", ["..", ".hidden", "a/../../x", "-x", "s1\n", "s1\0", "S" * 129, "é"])
def test_ids_never_leave_the_root(tmp_path: Path, target: str) -> None:
    Builder().write(tmp_path / "root")
    outside = tmp_path / "root/journal.jsonl"
    outside.write_bytes(open_turn().raw())
    before = tree(tmp_path)
    for command in ("inspect", "repair", "show", "tail", "verify"):
        answer = maka("journal", command, "--root", tmp_path / "root", "--", target)
        assert answer.code == 2, (command, answer.out)
    assert tree(tmp_path) == before


# ---------------------------------------------------------------- what is no file


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    directory = tmp_path / "sessions/s1"
    directory.mkdir(parents=True)
    path = directory / "journal.jsonl"
    os.mkfifo(path)
    for command in ("inspect", "repair", "show", "tail", "verify"):
        answer = maka("journal", command, path)
        assert answer.code == 4, (command, answer.err)
        assert "Traceback" not in answer.err
    path.unlink()
    path.mkdir()
    for command in ("inspect", "repair", "show", "tail", "verify"):
        assert maka("journal", command, path).code in (2, 4)
    assert maka("journal", "inspect", "/dev/null").code == 4
    assert maka("journal", "inspect", "/dev/zero").code == 4
    path.rmdir()
    path.symlink_to("journal.jsonl")
    assert maka("journal", "inspect", path).code in (2, 4)


def test_a_journal_that_is_a_link(tmp_path: Path) -> None:
    real = open_turn().write(tmp_path / "real")
    link = tmp_path / "link.jsonl"
    link.symlink_to(real)
    assert inspect(link)["verdict"] == "interrupted"
    done = repair(link)
    assert [event["type"] for event in done["appended"]] == ["step/end", "turn/end"]
    assert link.is_symlink()
    assert untouched(real)["verdict"] == "healthy"
    assert sorted(os.listdir(tmp_path)) == ["link.jsonl", "real"]


def test_a_second_name_of_the_file_is_no_conflict(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    os.link(path, tmp_path / "second")
    assert settled(path).types == ["step/end", "turn/end"]


def test_a_lone_file_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "some name.jsonl"
    path.write_bytes(open_turn().raw() + b'{"seq":')
    path.chmod(0o600)
    tmp_path.chmod(0o700)
    doc = inspect(path)
    assert "session_id_mismatch" not in codes(doc)
    settled(path)


# ---------------------------------------------------------------- locks


def test_a_live_writer(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    before = path.read_bytes()
    lock = path.parent / "journal.lock"
    with lock.open("w") as held:
        held.write(json.dumps({"pid": 4242, "host": "elsewhere", "since": 1}))
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        for flags in ([], ["--dry-run"], ["--salvage"], ["--salvage", "--dry-run"]):
            answer = maka("journal", "repair", path, "--json", *flags)
            assert answer.code == 3, flags
            assert (answer.json["appended"], answer.json["set_aside"]) == ([], [])
            assert "4242" in answer.err
        doc = inspect(path)
        assert doc["writer"] == {"pid": 4242, "host": "elsewhere", "since": 1}
        assert doc["turns"][-1]["status"] == "interrupted"
        assert verify(path)[0] == 0
        assert messages(path)
        import maka as library

        view = library.load(path)
        assert not view.repaired_on_disk
        assert [turn["status"] for turn in view.turns()] == ["completed", "interrupted"]
        with pytest.raises(library.JournalLocked):
            library.open_session(path)
        listed = maka("journal", "list", "--json", "--root", tmp_path).json["sessions"]
        assert [row["session_id"] for row in listed] == ["s1"]
    assert path.read_bytes() == before
    assert inspect(path)["writer"] is None
    settled(path)


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b'{"pid":"x"}', b"\xff" * 5000, b'{"pid":null}', b"7"])
def test_what_a_lock_file_says_means_nothing(tmp_path: Path, content: bytes) -> None:
    path = open_turn().write(tmp_path)
    lock = path.parent / "journal.lock"
    lock.write_bytes(content)
    assert inspect(path)["writer"] is None
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert inspect(path)["writer"] in (None, {"pid": None, "host": None, "since": None})
        assert maka("journal", "repair", path).code == 3
    settled(path)


# ---------------------------------------------------------------- places that cannot be written


def as_nobody(work: Callable[[], None]) -> int:
    """Run in a child that is no superuser; the exit status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A folder that any user can look into."""
    if os.geteuid() != 0:
        return tmp_path
    place = tmp_path
    while place != place.parent and not place.stat().st_mode & 0o001:
        place.chmod(place.stat().st_mode | 0o055)
        place = place.parent
    return tmp_path


def open_to_all(path: Path) -> None:
    for place in (path.parent, path.parent.parent, path.parent.parent.parent):
        place.chmod(0o755)
    path.chmod(0o644)


def unprivileged(work: Callable[[], None]) -> None:
    if os.geteuid() == 0:
        assert as_nobody(work) == 0
    else:
        work()


def test_a_read_only_place(reachable: Path) -> None:
    path = open_turn().write(reachable)
    open_to_all(path)
    if os.geteuid() != 0:
        path.chmod(0o444)
        path.parent.chmod(0o555)
    before = tree(path.parent)

    def work() -> None:
        import maka as library

        doc = inspect(path)
        assert doc["verdict"] == "interrupted"
        assert messages(path)
        assert verify(path)[0] == 0
        answer = maka("journal", "repair", path, "--json")
        assert answer.code == 2, (answer.code, answer.err)
        assert str(path.parent) in answer.err
        view = library.load(path)
        assert not view.repaired_on_disk
        assert [turn["status"] for turn in view.turns()] == ["completed", "interrupted"]

    unprivileged(work)
    path.parent.chmod(0o755)
    assert tree(path.parent) == before


def test_a_healthy_session_in_a_read_only_place(reachable: Path) -> None:
    path = healthy().write(reachable)
    open_to_all(path)
    if os.geteuid() != 0:
        path.parent.chmod(0o555)

    def work() -> None:
        import maka as library

        assert inspect(path)["verdict"] == "healthy"
        assert library.load(path).repaired_on_disk
        assert maka("journal", "repair", path).code == 0, "there is nothing to do"

    unprivileged(work)
    path.parent.chmod(0o755)


def test_a_file_that_may_not_be_read(reachable: Path) -> None:
    path = healthy().write(reachable)
    open_to_all(path)
    path.chmod(0o000)

    def work() -> None:
        doc = inspect(path)
        assert doc["verdict"] == "unreadable"
        assert codes(doc) == ["unreadable"]
        assert str(path) in doc["findings"][0]["message"]
        for command in ("repair", "verify", "show", "tail"):
            answer = maka("journal", command, path)
            assert answer.code == 4, (command, answer.code, answer.err)
            assert str(path) in answer.err + answer.out
        import maka as library

        for way in (library.load, library.inspect):
            with pytest.raises(library.JournalError):
                way(path)
        listed = maka("journal", "list", "--json", "--root", reachable).json["sessions"]
        assert [(row["session_id"], row["verdict"]) for row in listed] == [("s1", "unreadable")]

    unprivileged(work)


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["session", "sessions", "root"])
@pytest.mark.parametrize("by", ["id", "path"])
def test_a_place_that_may_not_be_searched(reachable: Path, depth: int, by: str) -> None:
    path = open_turn().write(reachable)
    open_to_all(path)
    closed = path.parents[depth]
    mode = closed.stat().st_mode
    closed.chmod(0o000)

    def work() -> None:
        import maka as library
        from maka.journal.errors import JournalError

        target, root = ("s1", ["--root", reachable]) if by == "id" else (path, [])
        for verb in ("inspect", "verify", "repair"):
            answer = maka("journal", verb, target, *root, "--json")
            assert answer.code == 4, (verb, answer.code, answer.err)
            document = json.loads(answer.out)
            assert document.get("verdict", document.get("verdict_before")) == "unreadable"
        for verb in ("show", "tail"):
            answer = maka("journal", verb, target, *root)
            assert answer.code == 4, (verb, answer.code, answer.err)
            assert f"cannot open {path}: Permission denied; " in answer.err
        for way in (library.load, library.inspect, library.open_session):
            with pytest.raises(JournalError, match="Permission denied"):
                way(str(target), reachable)

    try:
        unprivileged(work)
    finally:
        closed.chmod(mode)


def test_a_folder_that_may_not_be_entered(reachable: Path) -> None:
    path = healthy().write(reachable)
    open_to_all(path)
    path.parent.chmod(0o000)

    def work() -> None:
        for command in ("inspect", "repair", "verify", "show", "tail"):
            answer = maka("journal", command, path)
            assert answer.code in (2, 4), (command, answer.code, answer.err)
        assert maka("journal", "list", "--json", "--root", reachable).code == 0

    unprivileged(work)
    path.parent.chmod(0o700)


@pytest.mark.parametrize("which", ["root", "session"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_place_that_others_may_write_to(tmp_path: Path, which: str, mode: int) -> None:
    """For writing, a root or session directory that others may write to is refused. Reading works anywhere."""
    path = open_turn().write(tmp_path)
    before = path.read_bytes()
    place = tmp_path if which == "root" else path.parent
    place.chmod(mode)
    assert inspect(path)["verdict"] == "interrupted"
    answer = maka("journal", "repair", path)
    assert answer.code == 2, (answer.code, answer.err)
    assert str(place) in answer.err
    assert path.read_bytes() == before
    place.chmod(0o700)
    settled(path)


def test_what_a_repair_creates_is_private(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, builder.raw() + b"torn")
    os.umask(0o022)
    settled(path)
    for place in path.parent.rglob("*"):
        assert place.stat().st_mode & 0o777 == (0o700 if place.is_dir() else 0o600), place
    assert not list(path.parent.rglob("*.tmp"))


# ---------------------------------------------------------------- verify --head


def test_head(tmp_path: Path) -> None:
    builder = healthy()
    path = builder.write(tmp_path)
    for line in builder.lines:
        assert verify(path, "--head", json.loads(line)["sum"])[0] == 0
    for sum_ in ("f" * 32, "0" * 32, "", "x", builder.prev.upper(), builder.prev[:-1], builder.prev + "0"):
        if sum_ != builder.prev:
            assert verify(path, "--head", sum_)[0] == 4, sum_
    torn = builder.write(tmp_path, builder.raw() + b"{")
    assert verify(torn, "--head", builder.prev)[0] == 1
    assert verify(torn, "--head", "f" * 32)[0] == 4


def test_head_and_unverified_lines(tmp_path: Path) -> None:
    builder = Builder().plain_turn().plain_turn()
    lines = list(builder.lines)
    sums = [json.loads(line)["sum"] for line in lines]
    lines[6] = b"damage"
    path = builder.write(tmp_path, b"".join(line + b"\n" for line in lines))
    settled(path, "--salvage")
    assert verify(path, "--head", sums[5])[0] == 0
    assert verify(path, "--head", sums[6])[0] == 4
    assert verify(path, "--head", sums[7])[0] == 4
    assert verify(path, "--head", sums[9])[0] == 4
    assert verify(path)[0] == 0


def test_verify_sees_bytes_only(tmp_path: Path) -> None:
    builder = Builder().start().step().says().result("ghost")
    path = builder.write(tmp_path)
    assert inspect(path)["verdict"] == "damaged"
    code, doc = verify(path)
    assert (code, doc["verdict"], doc["findings"]) == (0, "healthy", [])
    assert doc["head"] == {"seq": builder.seq - 1, "sum": builder.prev}
    assert doc["events"] == builder.seq


# ---------------------------------------------------------------- list


def test_a_list_hides_nothing(tmp_path: Path) -> None:
    Builder("a-healthy", name="the name").plain_turn().plain_turn().write(tmp_path)
    Builder("b-open").start().step().write(tmp_path)
    torn = Builder("c-torn").plain_turn()
    torn.write(tmp_path, torn.raw()[:-20])
    damaged = Builder("d-damaged").plain_turn()
    damaged.lines[3] = b"x"
    damaged.write(tmp_path)
    Builder("e-empty").write(tmp_path, b"")
    Builder("f-noise").write(tmp_path, b"\xff" * 1000)
    Builder("g-newer", format=2).write(tmp_path)
    Builder("h-long").plain_turn("x" * 70_000).write(tmp_path)
    (tmp_path / "sessions/not-a-session").mkdir()
    (tmp_path / "sessions/a-file").write_text("x")
    (tmp_path / "sessions/.hidden").mkdir()
    answer = maka("journal", "list", "--json", "--root", tmp_path)
    assert answer.code == 0
    assert set(answer.json) == {"sessions"}
    rows = {row["session_id"]: row for row in answer.json["sessions"]}
    assert sorted(rows) == ["a-healthy", "b-open", "c-torn", "d-damaged", "e-empty", "f-noise", "g-newer", "h-long"]
    for row in rows.values():
        assert set(row) >= {"session_id", "name", "last_activity", "turns", "verdict"}
    assert rows["a-healthy"]["name"] == "the name"
    verdicts = {key: row["verdict"] for key, row in rows.items()}
    assert verdicts == {
        "a-healthy": "healthy",
        "b-open": "interrupted",
        "c-torn": "torn",
        "d-damaged": "damaged",
        "e-empty": "unreadable",
        "f-noise": "unreadable",
        "g-newer": "unsupported",
        "h-long": "unchecked",
    }
    assert maka("journal", "list", "--root", tmp_path).code == 0


def test_a_list_after_repairs_tells_turns_and_activity(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path)
    settled(path)
    [row] = maka("journal", "list", "--json", "--root", tmp_path).json["sessions"]
    assert (row["verdict"], row["turns"]) == ("healthy", 2)
    assert row["last_activity"] == builder.ts
    (path.parent / "snapshot.json").write_text("{}")
    [row] = maka("journal", "list", "--json", "--root", tmp_path).json["sessions"]
    assert row["session_id"] == "s1"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"size":1,"head":{}}', b"null", b"[" * 100_000])
def test_a_snapshot_is_never_the_truth(tmp_path: Path, content: bytes) -> None:
    path = open_turn().write(tmp_path)
    settled(path)
    (path.parent / "snapshot.json").write_bytes(content)
    untouched(path)
    assert maka("journal", "list", "--json", "--root", tmp_path).code == 0


def test_an_empty_or_missing_root(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        answer = maka("journal", "list", "--json", "--root", root)
        assert (answer.code, answer.json) == (0, {"sessions": []})
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------- blobs


def test_blobs_that_are_missing_are_a_warning(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    data = {**builder.ids, "step": 1, "call_id": "c", "operation_id": "op-1-c", "state": "ok", "is_error": False}
    ref = "sha256:" + "ab" * 32
    builder.add("tool/result", {**data, "content": [{"kind": "text", "text": "shown", "ref": ref, "bytes": 9}]})
    path = builder.end_step().end().write(tmp_path)
    doc = untouched(path)
    assert finding(doc, "blob_missing")["severity"] == "warning"
    (path.parent / "blobs").mkdir(mode=0o700)
    (path.parent / "blobs" / ("ab" * 32)).write_bytes(b"x")
    assert codes(untouched(path)) == []


@pytest.mark.parametrize(
    "ref", ["sha256:../../etc/passwd", "sha256:", "file:///etc/passwd", 7, None, "sha256:" + "g" * 64]
)
def test_references_that_are_none(tmp_path: Path, ref: Any) -> None:
    builder = Builder().start().step()
    content = [{"kind": "image", "media_type": "image/png", "ref": ref}]
    message = {**builder.ids, "step": 1, "message_id": "a", "content": content, "stop_reason": "x"}
    builder.add("assistant/message", message)
    settled(builder.write(tmp_path))


# ---------------------------------------------------------------- tail


def test_tail_prints_the_newest_lines(tmp_path: Path) -> None:
    builder = Builder()
    for number in range(30):
        builder.add("session/note", {"kind": f"n{number}"})
    path = builder.write(tmp_path)
    answer = maka("journal", "tail", path, "--json")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(events[0]["seq"], 31))
    assert events[-1]["data"] == {"kind": "n29"}
    for event, line in zip(reversed(events), reversed(builder.lines), strict=False):
        assert {key: event[key] for key in ("seq", "ts", "type", "data", "sum")} == json.loads(line)


class Following:
    """`tail --follow --json` in a process, with what it has printed so far."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "journal", "tail", str(path), "--follow", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seqs: list[int] = []
        self.said: list[str] = []
        self.threads = [
            threading.Thread(target=self._events, daemon=True),
            threading.Thread(target=self._sentences, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seqs.append(json.loads(line)["seq"])

    def _sentences(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        assert condition(), (self.seqs, self.said)

    def __enter__(self) -> "Following":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_following_appends_cuts_and_replacements(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    path = builder.write(tmp_path)
    with Following(path) as tail:
        tail.until(lambda: bool(tail.seqs) and tail.seqs[-1] == builder.seq - 1)
        short = builder.raw()
        builder.plain_turn()
        long = builder.raw()
        with path.open("ab") as file:
            file.write(long[len(short) : len(short) + 50])
            file.flush()
            time.sleep(0.3)
            file.write(long[len(short) + 50 :])
        tail.until(lambda: tail.seqs[-1] == builder.seq - 1)
        assert tail.seqs == list(range(builder.seq))
        # It shrinks: back to the last line whose sum is still there, and it says so.
        os.truncate(path, len(short))
        tail.until(lambda: len(tail.said) == 1)
        assert "shrank" in tail.said[0]
        with path.open("ab") as file:
            file.write(long[len(short) :])
        tail.until(lambda: len(tail.seqs) == 2 * builder.seq - len(short.splitlines()))
        # Its inode changes: the same lines are not told again.
        other = path.with_name("copy")
        builder.add("session/note", {"kind": "new"})
        other.write_bytes(builder.raw())
        told = len(tail.seqs)
        other.replace(path)
        tail.until(lambda: len(tail.seqs) > told)
        assert tail.seqs[told:] == [builder.seq - 1]
        assert len(tail.said) == 2
        # Something else altogether stands there.
        stranger = Builder(cwd="/elsewhere").plain_turn()
        other.write_bytes(stranger.raw())
        other.replace(path)
        tail.until(lambda: tail.seqs[-1] == stranger.seq - 1 and len(tail.said) == 3)
        assert tail.seqs[-stranger.seq :] == list(range(stranger.seq))


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    builder = Builder()
    for number in range(3000):
        builder.add("session/note", {"kind": f"n{number}"})
    path = builder.write(tmp_path)
    for command in (["inspect", "--events", "--json"], ["tail", "-n", "3000"], ["show"]):
        process = subprocess.Popen(
            [*COMMAND, "journal", *command, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(20)


def test_an_interrupt_is_130(tmp_path: Path) -> None:
    import signal

    path = healthy().write(tmp_path)
    with Following(path) as tail:
        tail.until(lambda: bool(tail.seqs))
        tail.process.send_signal(signal.SIGINT)
        assert tail.process.wait(20) == 130


# ---------------------------------------------------------------- documents


def test_event_list_is_the_lines(tmp_path: Path) -> None:
    builder = healthy()
    builder.add("x-team/thing", {"a": [1, 2.5, None]}, ignorable=True)
    path = builder.write(tmp_path)
    listed = inspect(path, "--events")["event_list"]
    assert len(listed) == len(builder.lines)
    for event, line in zip(listed, builder.lines, strict=True):
        wanted = json.loads(line)
        assert {key: event[key] for key in wanted} == wanted


def test_the_head_is_what_is_on_disk_and_pending_what_is_not(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path)
    doc = inspect(path)
    assert doc["head"] == {"seq": builder.seq - 1, "sum": builder.prev}
    assert doc["events"] == builder.seq
    assert doc["bytes"] == len(builder.raw())
    assert doc["format"] == 1
    assert doc["path"] == str(path)
    assert doc["header"] == json.loads(builder.lines[0])["data"]
    assert [event["seq"] for event in doc["pending"]] == [builder.seq, builder.seq + 1]


def test_turns_of_inspect(tmp_path: Path) -> None:
    builder = Builder().tool_turn()
    ends = next(i for i, line in enumerate(builder.lines) if b'"turn/end"' in line)
    doc = untouched(builder.write(tmp_path))
    assert doc["turns"] == [
        {
            "turn_id": "t1",
            "turn": 1,
            "status": "completed",
            "reason": {"kind": "completed"},
            "run_ids": ["r1"],
            "first_seq": 1,
            "last_seq": ends,
            "steps": 2,
            "calls": [{"call_id": "c1", "name": "tool", "state": "ok"}],
        }
    ]
    assert doc["runs"] == [{"run_id": "r1", "turn_id": "t1", "invocation_id": "i-r1", "status": "completed"}]


def test_verdicts_are_ordered(tmp_path: Path) -> None:
    """Each worse one hides the ones before it."""
    builder = Builder().plain_turn().start().step()
    raw = builder.raw()
    verdicts = [inspect(builder.write(tmp_path, raw))["verdict"]]
    torn = raw + b'{"seq":'
    verdicts.append(inspect(builder.write(tmp_path, torn))["verdict"])
    lines = list(builder.lines)
    lines[2] = b"bad"
    damaged = b"".join(line + b"\n" for line in lines) + b'{"seq":'
    verdicts.append(inspect(builder.write(tmp_path, damaged))["verdict"])
    future, _ = seal(builder.prev, {"seq": builder.seq, "ts": 1, "type": "future/thing", "data": {}})
    unsupported = b"".join(line + b"\n" for line in (*lines, future)) + b'{"seq":'
    verdicts.append(inspect(builder.write(tmp_path, unsupported))["verdict"])
    assert verdicts == ["interrupted", "torn", "damaged", "unsupported"]


def test_no_color_and_pipes(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    for command in ("inspect", "show", "tail"):
        assert "\x1b" not in maka("journal", command, path).out


def test_a_refusal_prints_its_document_and_a_sentence(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    builder.lines[2] = b"bad"
    path = builder.write(tmp_path)
    answer = maka("journal", "repair", path, "--json")
    assert answer.code == 4
    assert answer.json["verdict_before"] == answer.json["verdict_after"] == "damaged"
    assert "--salvage" in answer.err
    dry = maka("journal", "repair", path, "--dry-run", "--salvage", "--json")
    assert dry.code == 1
    assert dry.json["appended"][0]["type"] == "journal/gap"
    assert not (path.parent / "damage").exists()
