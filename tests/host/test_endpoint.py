"""Where a host listens, and what its clients are told of that."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from maka.runtime.host import EndpointRefused, Registration, endpoint
from maka.runtime.host.ownership import RootLock

EPOCH = "0123456789abcdef" * 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def lock(root: Path) -> Iterator[RootLock]:
    with RootLock.acquire(root) as held:
        yield held


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's runtime directory: a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as place:
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        yield Path(place)


def registration(root: Path, **other: object) -> Registration:
    values: dict[str, object] = {
        "host_epoch": EPOCH,
        "endpoint": "/run/s.sock",
        "pid": 7,
        "state": "ready",
        "started_at": 1_700_000_000_000,
        "version": "0.1.0",
        "root": str(root),
    }
    return Registration(**{**values, **other})  # type: ignore[arg-type]


def test_the_socket_has_a_private_directory_of_its_root_s_own(lock: RootLock, root: Path, run: Path) -> None:
    before = os.umask(0o777)
    try:
        path = endpoint.prepare(lock, EPOCH)
    finally:
        os.umask(before)
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:12]
    assert path == run / f"maka-{name}" / f"{EPOCH[:16]}.sock"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert endpoint.is_private(path, root)


def test_a_root_is_one_whichever_way_leads_to_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert endpoint.directory_of(tmp_path / "link") == endpoint.directory_of(root)
    assert endpoint.name_of(tmp_path / "link") == endpoint.name_of(root) == str(root.resolve())
    assert endpoint.directory_of(tmp_path) != endpoint.directory_of(root)


def test_a_root_s_name_can_always_be_sent(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert endpoint.name_of(odd).endswith("\\xff")
    orjson.dumps(endpoint.name_of(odd))


@pytest.mark.parametrize("runtime", ["", "relative", "/nowhere/at/all"])
def test_without_a_runtime_directory_the_temporary_one_is_taken(
    runtime: str, root: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr("tempfile.tempdir", str(run))
    assert endpoint.directory_of(root).parent == run


def test_a_path_that_is_too_long_for_a_socket_is_not_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    fits = 100 - 1 - len("/maka-0123456789ab/0123456789abcdef.sock")
    for length, taken in ((fits, True), (fits + 1, False)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "x" * (length - 1))
        monkeypatch.setattr("os.access", lambda *_: True)
        directory = endpoint.directory_of(root)
        assert (str(directory.parent) != "/tmp") == taken
        assert len(os.fsencode(directory / f"{EPOCH[:16]}.sock")) < endpoint.MAX_PATH
    monkeypatch.setattr("tempfile.tempdir", "/" + "y" * 100)
    with pytest.raises(EndpointRefused, match="must be shorter than 100 bytes; set TMPDIR to a shorter path"):
        endpoint.directory_of(root)


def test_a_directory_that_others_could_reach_is_refused(lock: RootLock, root: Path, tmp_path: Path) -> None:
    directory = endpoint.directory_of(root)
    directory.mkdir(mode=0o755)
    with pytest.raises(
        EndpointRefused,
        match=r"is open to others \(mode 0755\), so the host does not listen there; close it with `chmod 700 ",
    ):
        endpoint.prepare(lock, EPOCH)
    assert not endpoint.is_private(directory / "s.sock", root)
    directory.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    directory.symlink_to(elsewhere)
    with pytest.raises(EndpointRefused, match="is a link"):
        endpoint.prepare(lock, EPOCH)
    assert not endpoint.is_private(directory / "s.sock", root)
    directory.unlink()
    directory.write_text("")
    with pytest.raises(EndpointRefused, match="is no directory"):
        endpoint.prepare(lock, EPOCH)


def test_a_directory_of_another_user_is_refused(lock: RootLock, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = endpoint.directory_of(root)
    directory.mkdir(mode=0o700)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(EndpointRefused, match=rf"belongs to another user \(uid {os.getuid()}\)"):
        endpoint.prepare(lock, EPOCH)


def test_a_socket_in_another_user_s_directory_is_not_trusted(
    lock: RootLock, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = endpoint.prepare(lock, EPOCH)
    own = os.lstat(path.parent)
    with monkeypatch.context() as another:
        another.setattr("os.lstat", lambda _: os.stat_result((*own[:4], 12345, *own[5:])))
        assert not endpoint.is_private(path, root)


def test_a_place_that_cannot_be_written_to_is_told(lock: RootLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    with pytest.raises(EndpointRefused, match=r"cannot make /proc/maka-.*; give this user the right"):
        endpoint.prepare(lock, EPOCH)


def test_sockets_of_dead_hosts_are_swept_and_nothing_else(lock: RootLock) -> None:
    path = endpoint.prepare(lock, EPOCH)
    for name in ("aaaaaaaaaaaaaaaa.sock", "notes.txt"):
        (path.parent / name).write_text("")
    endpoint.prepare(lock, EPOCH)
    assert [place.name for place in path.parent.iterdir()] == ["notes.txt"]


def test_an_ended_host_leaves_neither_socket_nor_directory(lock: RootLock) -> None:
    path = endpoint.prepare(lock, EPOCH)
    path.write_text("")
    endpoint.clear(path)
    assert not path.parent.exists()
    endpoint.clear(path)


@pytest.mark.parametrize("app", [None, "demo"])
def test_what_is_registered_is_read(root: Path, app: str | None) -> None:
    assert endpoint.read_registration(root) is None
    written = registration(root, app=app)
    endpoint.write(root, written)
    assert endpoint.read_registration(root) == written
    path = root / "host.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert orjson.loads(path.read_bytes()) == {
        "protocol": {"min": 1, "max": 1},
        "host_epoch": EPOCH,
        "endpoint": "/run/s.sock",
        "pid": 7,
        "state": "ready",
        "started_at": 1_700_000_000_000,
        "version": "0.1.0",
        "root": str(root),
        **({} if app is None else {"app": app}),
    }
    assert [place.name for place in root.iterdir()] == ["host.json"]


def test_only_the_registered_host_takes_its_registration_away(root: Path) -> None:
    endpoint.write(root, registration(root))
    endpoint.remove(root, "f" * 32)
    assert endpoint.read_registration(root) is not None
    endpoint.remove(root, EPOCH)
    assert endpoint.read_registration(root) is None
    endpoint.remove(root, EPOCH)


def test_a_broken_registration_is_none(root: Path) -> None:
    path = root / "host.json"
    whole = registration(root).as_json()
    broken: list[object] = [7, {}, {**whole, "pid": "7"}, {**whole, "pid": True}, {**whole, "app": 7}]
    broken += [{**whole, "protocol": wrong} for wrong in (1, {}, {"min": 1}, {"min": 1, "max": "1"})]
    broken += [{key: value for key, value in whole.items() if key != gone} for gone in whole]
    for value in broken:
        path.write_bytes(orjson.dumps(value))
        path.chmod(0o600)
        assert endpoint.read_registration(root) is None, value
    for raw in (b"", b"{", b"\xff", orjson.dumps(whole) + b" " * 20_000 + b"x"):
        path.write_bytes(raw)
    path.write_bytes(orjson.dumps({**whole, "newer": 1}))
    assert endpoint.read_registration(root) == registration(root)


def test_a_registration_that_others_could_have_written_is_none(root: Path, tmp_path: Path) -> None:
    endpoint.write(root, registration(root))
    path = root / "host.json"
    path.chmod(0o620)
    assert endpoint.read_registration(root) is None
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert endpoint.read_registration(root) is None
    path.unlink()
    path.mkdir()
    assert endpoint.read_registration(root) is None
