"""Takes tables, sections and examples out of the documents."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
FORMAT = (DOCS / "format.md").read_text(encoding="utf-8")
RUNBOOK = (DOCS / "runbook.md").read_text(encoding="utf-8")
LIBRARY = (DOCS / "library.md").read_text(encoding="utf-8")
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
EMBEDDING = (DOCS / "embedding.md").read_text(encoding="utf-8")
HANDOFFS = (DOCS / "handoffs.md").read_text(encoding="utf-8")
HOST = (DOCS / "host.md").read_text(encoding="utf-8")
CLIENT = (DOCS / "client.md").read_text(encoding="utf-8")
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8")
CONTINUATIONS = (DOCS / "continuations.md").read_text(encoding="utf-8")
MODELS = (DOCS / "models.md").read_text(encoding="utf-8")
EXPORT = (DOCS / "export.md").read_text(encoding="utf-8")
FOREIGN = (DOCS / "foreign.md").read_text(encoding="utf-8")


class Section(NamedTuple):
    """A ``##`` section. ``python``: its examples, each with the number of lines of the document before it."""

    title: str
    python: list[tuple[int, str]]


def table(text: str, *columns: str) -> list[list[str]]:
    """The rows of every table with exactly these columns, in order. AssertionError if there is none."""
    rows: list[list[str]] = []
    found = inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else []
        if cells == list(columns):
            found = inside = True
        elif not cells:
            inside = False
        elif inside and not set("".join(cells)) <= set("-: "):
            rows.append(cells)
    assert found, f"there is no table with the columns {columns}"
    return rows


def block(text: str, language: str) -> str:
    """The only fenced block of that language, with its last line feed."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def python_checker() -> Callable[..., list[dict[str, Any]]]:
    """``check`` of the format document's Python example."""
    namespace: dict[str, Any] = {"__name__": "__example__"}
    exec(block(FORMAT, "python"), namespace)  # noqa: S102
    check: Callable[..., list[dict[str, Any]]] = namespace["check"]
    return check


def portable_shell(script: str) -> str:
    """As the document says where the tool has another name."""
    return script if shutil.which("sha256sum") else script.replace("sha256sum", "shasum -a 256")


def sections(text: str) -> list[Section]:
    """The ``##`` sections that hold Python examples."""
    out = []
    starts = [match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)]
    for start, end in zip(starts, [*starts, len(text)][1:], strict=True):
        part = text[start:end]
        examples = [
            (text.count("\n", 0, start + match.start(1)), match[1])
            for match in re.finditer(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        ]
        if examples:
            out.append(Section(part[3 : part.index("\n")], examples))
    return out
