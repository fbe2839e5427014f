"""What the loop asks of a model: one request, a stream of chunks, one kind of error. No I/O.

An adapter translates between a provider and these shapes. It does not retry and does not log: both are
the loop's to decide.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

import attrs

from ..journal.events import JsonObject


@attrs.frozen
class TextDelta:
    """A piece of visible text. ``index`` is the place of its block in the message."""

    text: str
    index: int = 0


@attrs.frozen
class ThinkingDelta:
    """A piece of reasoning. ``signature``, where the provider gives one, stands on the block's last piece."""

    text: str
    index: int = 0
    signature: str | None = None


@attrs.frozen
class ToolCallStart:
    """A call whose arguments follow as ``ToolCallDelta``s of the same ``index``, closed by a ``ToolCallEnd``."""

    call_id: str
    name: str
    index: int = 0


@attrs.frozen
class ToolCallDelta:
    arguments: str
    index: int = 0


@attrs.frozen
class ToolCallEnd:
    index: int = 0


@attrs.frozen
class ToolCallChunk:
    """A whole call at once. ``arguments`` is the raw JSON text as the model produced it."""

    call_id: str
    name: str
    arguments: str
    index: int = 0


@attrs.frozen
class UsageChunk:
    """Token counts so far; a later one replaces an earlier one."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


@attrs.frozen
class Finish:
    """The response is whole. ``stop_reason``: ``end_turn``, ``tool_use``, ``max_tokens`` or a provider's own word."""

    stop_reason: str


Chunk = TextDelta | ThinkingDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | ToolCallChunk | UsageChunk | Finish


@attrs.frozen
class ModelRequest:
    """One request, complete. ``messages`` are provider-neutral (``{"role","content":[blocks]}``) and legal as they are:
    each assistant message with calls is followed by one ``tool`` message that answers them all, in their order.

    ``tools``: ``[{"name","description","parameters"}]``; ``params`` goes to the provider as it is.
    """

    model: str
    messages: list[JsonObject]
    system: str | None = None
    tools: list[JsonObject] = attrs.Factory(list)
    params: JsonObject = attrs.Factory(dict)


class ModelError(Exception):
    """The provider failed. ``kind`` becomes the turn's failure class: ``provider_rate_limit``, ``provider_auth``,
    ``provider_network``, ``context_overflow`` …; ``retry_after`` is in seconds, where the provider named a time.
    """

    def __init__(
        self, message: str, *, kind: str = "provider_error", retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after


@runtime_checkable
class ModelAdapter(Protocol):
    """A provider. ``provider`` is its name, as it stands in ``request/header``.

    An adapter may have a ``context_window``, the tokens that its model takes in, or None: it is a part of what a run
    is made of (``RunComposition``). Nobody knows it of an adapter without.
    """

    @property
    def provider(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The response, chunk by chunk, ended by a ``Finish``. Nothing may be sent before the first ``__anext__``.

        Raises ModelError. Cancelling the iteration must end the request.
        """
        ...


def request_header(
    provider: str, model: str, system: str | None, tools: list[JsonObject], params: JsonObject
) -> dict[str, Any]:
    """What ``request/header`` records: the full snapshot of what a request is made with, history aside."""
    header: dict[str, Any] = {"provider": provider, "model": model}
    if system:
        header["system"] = system
    if tools:
        header["tools"] = tools
    if params:
        header["params"] = params
    return header
