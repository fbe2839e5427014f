"""What is looked at outside the journal before a run goes on: its workspace, background work, the tools there are."""

import asyncio
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Protocol, TypeVar

import attrs
import orjson

from ...journal.codec import serialize
from ...journal.errors import InvalidEvent
from ...journal.events import Draft, JsonObject
from ...journal.state import State
from ..errors import describe
from ..tasks import seen

T = TypeVar("T")

_GETVERSION: Final = 0x80087601
#: Seconds that an inspector has; where it takes longer nothing is observed.
SECONDS: Final = 30.0
#: Bytes of an identity or a checkpoint as JSON. Each run's header holds its identity, and has to fit into a line.
MAX_BYTES: Final = 64 * 1024


class SafetyInspector(Protocol):
    """Looks whether the workspace of a session is as an interrupted run left it, before that run is continued."""

    async def inspect_continuation_safety(self, session_id: str, /) -> "JsonObject | SafetyObservation":
        """A SafetyObservation, or a mapping with its attributes as keys (``checkpoint`` and ``cwd`` may be missing).

        Whatever it raises means that nothing was observed.
        """
        ...


#: Observes a session: its id, and its fold. Raises Unobserved.
Observe = Callable[[str, State], "Awaitable[SafetyObservation]"]


class Unobserved(Exception):
    """The inspector raised, took too long, or gave something that is no observation; the message says which."""


@attrs.frozen(kw_only=True)
class SafetyObservation:
    """``workspace_identity``: any JSON value, of 64 KiB at most, that is equal as long as the workspace is the same;
    None: unknown.

    ``background_operations_settled``: does nothing of earlier runs go on any more? ``available_tool_names``: sorted.
    ``checkpoint``: ``{"ref", "high_water", "restored"}`` where the workspace is put back to a saved state before a run
    goes on; ``restored`` says whether it is, ``high_water`` the number of the event that it was saved behind.
    ``cwd``: where the workspace is, for people.
    """

    workspace_identity: Any
    background_operations_settled: bool
    available_tool_names: tuple[str, ...]
    checkpoint: JsonObject | None = None
    cwd: str | None = None

    def to_json(self) -> JsonObject:
        """``{workspace_identity, background_operations_settled, available_tool_names, checkpoint?, cwd?}``."""
        values = attrs.asdict(self, recurse=False)
        values["available_tool_names"] = list(self.available_tool_names)
        return {key: value for key, value in values.items() if value is not None or key == "workspace_identity"}


async def observe(inspector: SafetyInspector, session_id: str) -> SafetyObservation:
    """What the inspector sees now. Raises Unobserved."""
    # In a task of its own: whatever it cancels or raises is no business of whoever asks.
    looking = asyncio.ensure_future(_looked(inspector, session_id))
    looking.add_done_callback(seen)
    try:
        await asyncio.wait({looking}, timeout=SECONDS)
    finally:
        looking.cancel()
    if not looking.done():
        raise Unobserved(f"it took longer than {SECONDS:g} s")
    if looking.cancelled():
        raise Unobserved("it was cancelled, by itself or by what it waited for")
    error = looking.exception()
    if isinstance(error, Unobserved):
        raise error
    if error is not None:
        raise Unobserved(describe(error, typed=True)) from error
    return looking.result()


async def _looked(inspector: SafetyInspector, session_id: str) -> SafetyObservation:
    given: object = inspector.inspect_continuation_safety(session_id)
    if isinstance(given, Awaitable):
        given = await given
    return observation_of(given)


async def _in_time(looking: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(SECONDS) as limit:
            return await looking
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unobserved(f"it took longer than {SECONDS:g} s") from None


_FIELDS: Final = tuple(field.name for field in attrs.fields(SafetyObservation))
_NEEDED: Final = _FIELDS[:3]


def observation_of(seen: object) -> SafetyObservation:
    """Takes what an inspector gave as an observation, its values as a journal would give them back. Raises Unobserved
    for what is none.
    """
    if isinstance(seen, SafetyObservation):
        seen = attrs.asdict(seen, recurse=False)
    if not isinstance(seen, Mapping):
        raise Unobserved(f"it gave a {type(seen).__name__} and no observation")
    if lacks := [key for key in _NEEDED if key not in seen]:
        raise Unobserved(f"its observation lacks `{lacks[0]}`")
    names, settled = seen["available_tool_names"], seen["background_operations_settled"]
    if not isinstance(settled, bool):
        raise Unobserved(f"`background_operations_settled` is a {type(settled).__name__} and not True or False")
    if not isinstance(names, Collection) or isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise Unobserved("`available_tool_names` must be texts")
    for key, kind in (("checkpoint", dict), ("cwd", str)):
        if not isinstance(seen.get(key), kind | None):
            raise Unobserved(f"`{key}` must be a {kind.__name__}, not a {type(seen[key]).__name__}")
    given = {key: seen[key] for key in _FIELDS if key in seen}
    for key in ("workspace_identity", "checkpoint"):
        given[key] = _kept(key, seen.get(key))
    return SafetyObservation(**{**given, "available_tool_names": tuple(sorted(set(names)))})


def _kept(name: str, value: Any) -> Any:
    """The value as it would be read from the run header that holds it. Raises Unobserved where none could."""
    held = Draft(_HELD, {"run": {name: value}})
    try:
        same, data = serialize(held)
    except InvalidEvent as error:
        raise Unobserved(f"its observation cannot be kept: {str(error).removeprefix(_AT)}") from error
    if same is not held:
        raise Unobserved(f"`{name}` holds text with half of a surrogate pair, which is no text")
    if len(data) > MAX_BYTES:
        raise Unobserved(
            f"`{name}` is {len(data)} bytes long as JSON, and has at most {MAX_BYTES}; give a digest of it"
        )
    return orjson.loads(data)["run"][name]


#: Where a run's header stands in an event, and how the journal's words for it begin.
_HELD: Final = "run/created"
_AT: Final = f"{_HELD}: data.run."


def workspace_identity(cwd: str) -> JsonObject | None:
    """``{"realpath", "device", "inode", "generation"?}`` of a directory; None where there is none.

    A file system gives the number of a directory that is gone to the next one: where it counts such generations (Linux,
    ext4 for one), that tells them apart.
    """
    try:
        real = os.path.realpath(cwd, strict=True)
        found = os.stat(real)
    except (OSError, ValueError):
        return None
    if not stat.S_ISDIR(found.st_mode):
        return None
    identity = {"realpath": real, "device": found.st_dev, "inode": found.st_ino}
    generation = _generation(real)
    return identity if generation is None else {**identity, "generation": generation}


def same_workspace(one: Any, other: Any) -> bool:
    """Are two identities of one workspace? A generation counts where both have it: not every look can tell it."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() ^ other.keys() == {"generation"}:
        one, other = ({key: value for key, value in each.items() if key != "generation"} for each in (one, other))
    return bool(one == other)


def _generation(directory: str) -> int | None:
    """FS_IOC_GETVERSION of linux/fs.h: which of those that had this number the directory is."""
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int.from_bytes(fcntl.ioctl(fd, _GETVERSION, bytes(8))[:4], sys.byteorder)
    except OSError:
        return None
    finally:
        os.close(fd)


async def look(cwd: str, tools: Collection[str], *, settled: bool) -> SafetyObservation:
    """What this process can see by itself, where an app has no inspector of its own. Raises Unobserved."""
    return SafetyObservation(
        workspace_identity=await _in_time(asyncio.to_thread(workspace_identity, cwd)),
        background_operations_settled=settled,
        available_tool_names=tuple(sorted(set(tools))),
        cwd=cwd,
    )
