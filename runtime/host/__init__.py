"""The host: one process owns a root, many clients use it. Names are loaded on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client, connect
    from .electing import HostStartFailed, ensure_host, find_host
    from .endpoint import EndpointRefused, Registration
    from .link import HostUnreachable, RequestInterrupted
    from .ownership import HostRunning
    from .protocol import HostError
    from .watching import Frame, Subscription, SubscriptionClosed

#: Module → what of it is public here.
_PUBLIC = {
    "client": ("Client", "connect"),
    "electing": ("HostStartFailed", "ensure_host", "find_host"),
    "endpoint": ("EndpointRefused", "Registration"),
    "link": ("HostUnreachable", "RequestInterrupted"),
    "ownership": ("HostRunning",),
    "protocol": ("HostError",),
    "watching": ("Frame", "Subscription", "SubscriptionClosed"),
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = [
    "Client",
    "EndpointRefused",
    "Frame",
    "HostError",
    "HostRunning",
    "HostStartFailed",
    "HostUnreachable",
    "Registration",
    "RequestInterrupted",
    "Subscription",
    "SubscriptionClosed",
    "connect",
    "ensure_host",
    "find_host",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'maka.runtime.host' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
