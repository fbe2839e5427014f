"""What a run's agent is made of, as hashes: its prompt, tools, provider options and context window. No I/O.

A successor is the same agent if these are the same; who composed it, and from which sources, is provenance.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs
import orjson

from ..journal.events import JsonObject

SCHEMA: Final = 1
#: What a successor must have as its source had it: key → how a person calls it.
SEMANTICS: Final = {
    "base_system_prompt_hash": "prompt",
    "tool_catalog_hash": "tool catalog",
    "tool_availability_hash": "tool availability",
    "base_provider_options_hash": "provider options",
    "context_window": "context window",
}
_COMPOSER: Final = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9]+)*")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
#: Characters of a composer's id and revision, of a source's, and of a tool's name.
MAX_NAME: Final = 128
_SOURCES: Final = 64
MAX_TOOLS: Final = 256


def hashed(value: Any) -> str:
    """``sha256:`` and the 64 hex of a value's compact JSON with sorted keys."""
    return "sha256:" + hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _sources(given: Any) -> Any:
    fits = isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
    return dict(sorted(given.items())) if fits else given


def _names(given: Any) -> Any:
    fits = isinstance(given, Collection) and not isinstance(given, str) and all(isinstance(one, str) for one in given)
    return tuple(sorted(given)) if fits else given


@attrs.frozen(kw_only=True)
class RunComposition:
    """A snapshot of what a run's agent is made of. The four hashes are those of ``hashed``, or any other of that form.

    ``composer_id``: who made it, as ``maka.loop``. ``source_revisions``: the revision of each source by its id, at most
    64. ``tool_names``: at most 256, each once. ``context_window``: tokens, or None where nobody knows. They are sorted
    here. Raises ValueError for what none can have.
    """

    composer_id: str
    composer_revision: str
    source_revisions: dict[str, str] = attrs.field(factory=dict, converter=_sources)
    base_system_prompt_hash: str
    tool_catalog_hash: str
    tool_availability_hash: str
    base_provider_options_hash: str
    tool_names: tuple[str, ...] = attrs.field(default=(), converter=_names)
    context_window: int | None = None

    def __attrs_post_init__(self) -> None:
        if (fault := _fault(self)) is not None:
            raise ValueError(f"a run composition's {fault}")

    def to_json(self) -> JsonObject:
        """As ``run/composition`` holds it (docs/format.md, "Values inside events")."""
        return {
            "schema": SCHEMA,
            "composer_id": self.composer_id,
            "composer_revision": self.composer_revision,
            "source_revisions": [{"id": id_, "revision": revision} for id_, revision in self.source_revisions.items()],
            "base_system_prompt_hash": self.base_system_prompt_hash,
            "tool_catalog_hash": self.tool_catalog_hash,
            "tool_availability_hash": self.tool_availability_hash,
            "base_provider_options_hash": self.base_provider_options_hash,
            "tool_names": list(self.tool_names),
            "context_window": self.context_window,
        }

    @classmethod
    def from_json(cls, data: Any) -> "RunComposition":
        """What ``to_json`` gave. Keys of later versions are passed over; lists that are not sorted, or name something
        twice, are none of ours. Raises ValueError.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"it is no run composition of schema {SCHEMA}")
        fields: dict[str, Any] = {field.name: data.get(field.name) for field in attrs.fields(cls)}
        listed = data.get("source_revisions")
        if not isinstance(listed, list) or not all(
            isinstance(one, dict) and one.keys() == _OF_SOURCE for one in listed
        ):
            raise ValueError("source_revisions are no list of an id and a revision each")
        if not isinstance(data.get("tool_names"), list):
            raise ValueError("tool_names are no list")
        fields["source_revisions"] = {str(one["id"]): one["revision"] for one in listed}
        made = cls(**fields)
        if made.to_json() != {key: data.get(key) for key in made.to_json()}:
            raise ValueError("its source_revisions or tool_names are not sorted, or name something twice")
        return made


_OF_SOURCE: Final = {"id", "revision"}


def drift(was: RunComposition, now: RunComposition) -> list[str]:
    """What of the agent has changed, as a person calls it; empty where it is the same agent."""
    return [name for key, name in SEMANTICS.items() if getattr(was, key) != getattr(now, key)]


def _fault(made: RunComposition) -> str | None:
    """What of it cannot be, as the rest of a sentence."""
    if not _is_name(made.composer_id) or _COMPOSER.fullmatch(made.composer_id) is None:
        return f"composer_id must be lower-case words joined by dots or dashes, of at most {MAX_NAME} characters"
    if not _is_name(made.composer_revision):
        return f"composer_revision must be a text of at most {MAX_NAME} characters"
    sources: Any = made.source_revisions
    if not isinstance(sources, dict) or len(sources) > _SOURCES:
        return f"source_revisions must be at most {_SOURCES} revisions by the id of their source"
    if not all(_is_name(one) for pair in sources.items() for one in pair):
        return f"source_revisions must be texts of at most {MAX_NAME} characters"
    for key in SEMANTICS:
        value = getattr(made, key)
        if key == "context_window":
            if value is not None and (value.__class__ is not int or value <= 0):
                return f"context_window must be a positive number of tokens, or None, not {value!r}"
        elif not isinstance(value, str) or _HASH.fullmatch(value) is None:
            return f"{key} must be `sha256:` and 64 hex digits"
    names: Any = made.tool_names
    if not isinstance(names, tuple) or len(names) > MAX_TOOLS or not all(map(_is_name, names)):
        return f"tool_names must be at most {MAX_TOOLS} texts of at most {MAX_NAME} characters"
    return "tool_names name something twice" if len(set(names)) < len(names) else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME
