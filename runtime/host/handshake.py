"""The first frame of a client: who it is, whom it looks for, and which version of the protocol both speak. No I/O."""

from typing import Any, Final

import attrs

from ...journal.events import JsonObject
from ..ids import unsuitable
from .protocol import NEWEST, OLDEST, FrameError

_KEYS: Final = ({"kind", "protocol", "client"}, {"root", "host_epoch"})
_CLIENT: Final = ({"id", "surface"}, {"version"})


class Refused(Exception):
    """A client that is not served. ``range``: the versions that this host speaks, where that is the reason."""

    def __init__(self, code: str, message: str, range: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.range = range


@attrs.frozen
class Accepted:
    """``client``: ``{id, surface, version?}``."""

    protocol: int
    client: JsonObject


def look(hello: JsonObject, *, host_epoch: str, root: str) -> Accepted:
    """Raises FrameError for what is no hello, and Refused.

    The versions are looked at first: a newer client may say more than this version knows.
    """
    if hello["kind"] != "hello":
        raise _bad(f"the first frame is a hello, not {hello['kind'][:80]}")
    spoken = _negotiated(hello.get("protocol"))
    check_keys("a hello", hello, *_KEYS)
    client = hello["client"]
    if not isinstance(client, dict):
        raise _bad("`client` of a hello is an object")
    check_keys("`client` of a hello", client, *_CLIENT)
    for key, value in client.items():
        if (wrong := unsuitable(value)) is not None:
            raise _bad(f"`client.{key}` of a hello {wrong}")
    for key, own in (("root", root), ("host_epoch", host_epoch)):
        if key in hello and hello[key] != own:
            raise Refused("wrong_host", f"this is the host {host_epoch} of {root}; read host.json, and connect there")
    return Accepted(spoken, client)


def check_keys(what: str, value: JsonObject, required: set[str], optional: set[str] | frozenset[str]) -> None:
    """Raises FrameError for a key that is missing or not known."""
    if lacking := required - value.keys():
        raise _bad(f"{what} lacks its key {min(lacking)}")
    if unknown := value.keys() - required - optional:
        raise _bad(f"{what} has no key {min(unknown)[:80]}")


def _negotiated(spoken: Any) -> int:
    if not isinstance(spoken, dict) or spoken.keys() != {"min", "max"}:
        raise _bad("`protocol` of a hello is an object with the keys min and max")
    least, most = spoken["min"], spoken["max"]
    if not (type(least) is type(most) is int) or least > most:
        raise _bad("`protocol` of a hello has whole numbers, min not above max")
    if least > NEWEST or most < OLDEST:
        raise Refused(
            "protocol_incompatible",
            f"this host speaks versions {OLDEST} to {NEWEST} of the protocol, and the client {least} to {most}; "
            f"update {'the host' if least > NEWEST else 'the client'}",
            {"min": OLDEST, "max": NEWEST},
        )
    return int(min(most, NEWEST))


def _bad(what: str) -> FrameError:
    return FrameError("bad_frame", what)
