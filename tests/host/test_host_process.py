"""Processes that are hosts, and how they end: in their time, whatever hangs in them."""

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from maka.runtime.host import HostError, HostStartFailed, HostUnreachable, ensure_host
from maka.runtime.host.ownership import owner
from support.hosts import PATIENCE, TESTS, HostProcess, Root, a_root

#: A host whose turns run into a thread that nobody can end.
HANGING = """
import asyncio, logging, sys, time
sys.path.insert(0, {tests!r})
from maka.runtime import App
from maka.runtime.backends.scripted import Faults, scripted_backend
from maka.runtime.host import process
from maka.runtime.host.host import Host, HostDeadlines
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.scripted import Do

async def hangs(input):
    while True:
        try:
            await asyncio.to_thread(time.sleep, 600)
        except asyncio.CancelledError:
            pass

logging.basicConfig(level=logging.INFO)
process._LEFTOVERS = 0.2
faults = Faults(ignore_stop=True, ignore_dispose=True, ignore_close=True)
script = scripted_backend([[Do(hangs)]], faults=faults)
app = App(backends={{"scripted": script}}, default_backend="scripted", permission_mode="bypass")
deadlines = Deadlines(stop={kernel}, dispose={kernel}, after_step={kernel}, exit={kernel}, grace=0.05)
host = Host(sys.argv[1], app, deadlines=HostDeadlines(shutdown={shutdown}, goodbye=0.2), kernel_deadlines=deadlines)
sys.exit(asyncio.run(process._serve(host)))
"""


#: A host whose app ends the program from a callback that nobody waits for.
EXITING = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from maka.runtime import App
from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.host import process
from maka.runtime.scripted import Do, Wait

def exits(input):
    asyncio.get_running_loop().call_soon(sys.exit, 0)

script = scripted_backend([[Do(exits), Wait()]])
app = App(backends={{"scripted": script}}, default_backend="scripted", permission_mode="bypass")
sys.modules["exiting"] = sys.modules["__main__"]
sys.exit(process.main(sys.argv[1], "exiting:app"))
"""


def test_a_host_whose_app_ends_the_program_says_so_and_has_not_been_stopped(tmp_path: Path) -> None:
    async def test(root: Root) -> None:
        host = await root.start(code=EXITING.format(tests=str(TESTS)))
        async with root.client() as client:
            with suppress(HostError, HostUnreachable):
                await client.start_turn("s1", "go", turn_id="t")
            assert host.process.wait(PATIENCE) == 1
        assert "maka: something that the app has started called sys.exit(0), which ends its host" in host.said()
        assert owner(root.path) is None
        [end] = root.of_type("turn/end")
        assert end.data["reason"]["kind"] == "aborted"

    with a_root(tmp_path / "root") as root:
        asyncio.run(test(root))


@pytest.mark.parametrize(
    ("kernel", "shutdown", "code"),
    [
        # What hangs is given up by the kernel, and the thread ends with the process.
        (0.1, 20.0, 0),
        # The kernel would wait longer than the host has time.
        (60.0, 0.3, 1),
    ],
)
def test_a_host_ends_in_its_time_although_a_thread_hangs(
    tmp_path: Path, kernel: float, shutdown: float, code: int
) -> None:
    async def test(root: Root) -> None:
        program = HANGING.format(tests=str(TESTS), kernel=kernel, shutdown=shutdown)
        host = await root.start(code=program)
        async with root.client() as client:
            started = await client.start_turn("s1", "go", turn_id="t")
            assert started["turn"]["status"] == "running"
        assert host.stop() == code
        assert owner(root.path) is None
        following = await root.start()
        async with root.client() as client:
            assert (await client.query_turn("s1", "t"))["status"] in ("cancelled", "failed")
        assert following.stop() == 0

    with a_root(tmp_path / "root") as root:
        asyncio.run(test(root))


def test_a_second_signal_ends_a_host_where_it_stands(tmp_path: Path) -> None:
    async def test(root: Root) -> None:
        program = HANGING.format(tests=str(TESTS), kernel=60.0, shutdown=60.0)
        host = await root.start(code=program)
        async with root.client() as client:
            await client.start_turn("s1", "go", turn_id="t")
            host.process.send_signal(signal.SIGTERM)
            while (await client.status())["state"] != "draining":
                await asyncio.sleep(0.01)
            host.process.send_signal(signal.SIGINT)
            assert host.process.wait(PATIENCE) == 1
        assert "twice" in host.said()

    with a_root(tmp_path / "root") as root:
        asyncio.run(test(root))


def test_a_second_signal_is_heard_although_an_app_blocks_the_loop(tmp_path: Path) -> None:
    async def test(root: Root) -> None:
        program = HANGING.format(tests=str(TESTS), kernel=60.0, shutdown=60.0)
        blocks = "print('it blocks', file=sys.stderr, flush=True); time.sleep(600)"
        program = program.replace("await asyncio.to_thread(time.sleep, 600)", blocks)
        host = await root.start(code=program)
        async with root.client() as client:
            asking = asyncio.ensure_future(client.start_turn("s1", "go", turn_id="t"))
            while "it blocks" not in host.said():
                await asyncio.sleep(0.01)
            host.process.send_signal(signal.SIGTERM)
            while "stopped by SIGTERM" not in host.said():
                await asyncio.sleep(0.01)
            host.process.send_signal(signal.SIGTERM)
            assert host.process.wait(PATIENCE) == 1
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    with a_root(tmp_path / "root") as root:
        asyncio.run(test(root))


def test_a_root_that_has_a_host_is_refused_with_its_process(tmp_path: Path) -> None:
    async def test(root: Root) -> None:
        host = await root.start()
        second = HostProcess(root.path)
        assert second.process.wait(PATIENCE) == 3
        assert f"process {host.process.pid}" in second.said()
        assert host.stop() == 0

    with a_root(tmp_path / "root") as root:
        asyncio.run(test(root))


def test_an_app_that_cannot_be_loaded_is_told_in_a_sentence(tmp_path: Path) -> None:
    with a_root(tmp_path / "root") as root:
        host = HostProcess(root.path, app="support.nothing_of_that_name:app")
        assert host.process.wait(PATIENCE) == 2
        assert "Traceback" not in host.said()
        assert "support.nothing_of_that_name" in host.said()


def test_beside_a_host_whose_app_hangs_in_its_import_no_second_one_is_started(tmp_path: Path) -> None:
    async def test(root: Root) -> None:
        (root.path / "hanging.py").write_text("import time\ntime.sleep(600)\n")
        host = HostProcess(root.path, app="hanging:app")
        root.hosts.append(host)
        pid = host.process.pid
        while owner(root.path) is None:
            assert host.process.poll() is None, host.said()
            await asyncio.sleep(0.01)
        for _ in range(2):
            with pytest.raises(HostStartFailed, match=rf"\(process {pid}\) .* does not serve yet.*`kill {pid}`"):
                await ensure_host(root.path, timeout=0.2)
        # What is started writes a log.
        assert not (root.path / "host.log").exists()
        assert f"process {pid} is the host of {root.path} and loads its app" in host.said()
        # As the sentence says.
        host.process.send_signal(signal.SIGTERM)
        host.process.wait(PATIENCE)
        assert owner(root.path) is None

    with a_root(tmp_path / "root") as root:
        asyncio.run(test(root))


def test_a_root_is_given_back_where_its_app_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from maka.runtime.host.process import main

    monkeypatch.chdir(tmp_path)
    assert main(tmp_path / "root", "support.nothing_of_that_name:app") == 2
    assert owner(tmp_path / "root") is None


def test_a_signal_is_heard_amid_a_line_of_the_log() -> None:
    """Nothing that may be under way already is entered from within its handler."""
    program = """
import asyncio, io, logging, os, signal, sys, threading
from maka.runtime.host import process

class Host:
    def __init__(self):
        self.ended = asyncio.Event()
    async def serve(self, lock):
        class Amid(io.RawIOBase):
            def writable(self):
                return True
            def write(self, data):
                os.kill(os.getpid(), signal.SIGTERM)
                return len(data)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(Amid()), write_through=True)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO)
        logging.getLogger("maka.runtime").info("a line")
        await asyncio.wait_for(self.ended.wait(), 10)
    def shut_down(self, mode):
        self.ended.set()

sys.exit(asyncio.run(process._serve(Host())))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, "is stopped by SIGTERM" in done.stderr) == (0, True), done.stderr
