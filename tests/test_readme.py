"""The front page is true: its examples run as they stand, its links lead somewhere."""

import asyncio
import re
from pathlib import Path

import pytest

import maka
from maka.runtime import App, ScriptedModel, SessionManager, loop_backend

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_its_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    reading, running = examples()
    exec(compile(running, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    told = capsys.readouterr().out
    assert "tool_result" in told
    assert "complete {'stop_reason': 'end_turn'}" in told

    async def session() -> Path:
        app = App(backends={"loop": loop_backend(ScriptedModel(["Hello."]))}, default_backend="loop")
        async with SessionManager("other", app=app) as sessions:
            session_id = await sessions.create()
            async for _ in sessions.send(session_id, "Hi."):
                pass
            return Path("other") / "sessions" / session_id / "journal.jsonl"

    path = asyncio.run(session())
    assert maka.inspect(path).verdict == "healthy"
    exec(compile(reading.replace("path/to/journal.jsonl", str(path)), "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.splitlines()[-1] == "healthy []"


@pytest.mark.repository
def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []
