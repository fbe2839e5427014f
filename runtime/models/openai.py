"""A model behind chat completions over HTTP: OpenAI, and every server that speaks the same protocol."""

import asyncio
import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from ...journal.events import JsonObject
from ..model import Chunk, ModelError, ModelRequest
from .chat_errors import error_in_stream, error_of_status, refuses
from .chat_request import chat_body
from .chat_stream import ChatStream

if TYPE_CHECKING:
    from openai import AsyncStream

_URL: Final = "https://api.openai.com/v1"
#: What stands in the header of a request to a server that wants no key: the client does not do without one.
_NO_KEY: Final = "unused"
#: The packages whose errors mean that the connection failed, where the client passes them on as they are.
_TRANSPORTS: Final = {"httpx", "httpx2", "httpcore", "httpcore2", "h11", "anyio"}


class OpenAIModel:
    """A ``ModelAdapter``. Without arguments it takes ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` from the environment.

    ``connect_timeout`` and ``idle_timeout`` are seconds, None for no limit; idle is a response of which nothing comes,
    its beginning included. ``provider`` is the name that stands in ``request/header``, ``context_window`` the tokens
    that the model takes in, where you know it: a run that was handed over goes on only with the same.

    It holds one client, with its connections, until ``aclose``, and serves the event loop that first uses it.
    Raises ModelError where the package or the key is missing, or the base URL is none.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        provider: str = "openai",
        context_window: int | None = None,
        connect_timeout: float | None = 10.0,
        idle_timeout: float | None = 300.0,
    ) -> None:
        try:
            from openai import AsyncOpenAI, Timeout
        except ImportError:
            raise ModelError(
                "the package openai is not installed; install maka-runtime[openai], the extra that brings it",
                kind="provider_unavailable",
            ) from None
        url = base_url or os.environ.get("OPENAI_BASE_URL") or _URL
        self._key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        self._where = _shown(url)
        if not self._key and url.rstrip("/") == _URL:
            raise ModelError(
                f"there is no API key for {_URL}; set OPENAI_API_KEY or pass api_key, or name another server with "
                "OPENAI_BASE_URL or base_url",
                kind="provider_auth",
            )
        if not re.fullmatch("[!-~]*", self._key):
            raise ModelError(
                "the API key holds a character that no key has, a space for one; look at OPENAI_API_KEY or api_key",
                kind="provider_auth",
            )
        self.provider = provider
        self.context_window = context_window
        self._client = AsyncOpenAI(
            api_key=self._key or _NO_KEY,
            base_url=url,
            max_retries=0,
            timeout=Timeout(idle_timeout, connect=connect_timeout),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._counts_refused = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections; what still streams fails. May be called again."""
        self._closed = True
        await self._client.close()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The response, chunk by chunk. Raises ModelError; cancelled or closed, it closes the HTTP response at once."""
        self._check_use()
        body = chat_body(request)
        translation = ChatStream({tool["name"] for tool in request.tools}, lambda: f"call_{uuid.uuid4().hex[:24]}")
        try:
            response = await self._open(body)
            came = 0
            try:
                while (event := await _next(response, translation)) is not _END:
                    came += 1
                    for chunk in translation.feed(event):
                        yield chunk
            finally:
                with contextlib.suppress(Exception):
                    await response.close()
            if not translation.finished:
                raise self._unfinished(response.response.headers.get("content-type", ""), came)
            for chunk in translation.end():
                yield chunk
        except Exception as error:
            failure = self._failure(error)
            if failure is error:
                raise
            # Without what was raised first: that may quote the request.
            raise failure from None

    # ------------------------------------------------------------ requests

    def _check_use(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._closed:
            raise RuntimeError("the model adapter is closed; make another one")
        if self._loop is not loop:
            raise RuntimeError("the model adapter belongs to another event loop; make one for each event loop")

    async def _open(self, body: JsonObject) -> "AsyncStream[object]":
        """A response whose headers are here. Token counts are asked for, unless the server has once refused that."""
        from openai import APIStatusError

        if not self._counts_refused and "stream_options" not in body:
            try:
                return await self._post({**body, "stream_options": {"include_usage": True}})
            except APIStatusError as error:
                if error.status_code not in (400, 422) or not refuses(error.body, "stream_options", "include_usage"):
                    raise
            self._counts_refused = True
        return await self._post(body)

    async def _post(self, body: JsonObject) -> "AsyncStream[object]":
        from openai import AsyncStream

        try:
            return await self._client.post(
                "/chat/completions", cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
            )
        except (TypeError, UnicodeEncodeError) as error:
            raise ModelError(
                f"the request cannot be written as JSON: {error}; look at the parameters and the tools",
                kind="provider_invalid_request",
            ) from None

    # ------------------------------------------------------------ failures

    def _failure(self, error: Exception) -> Exception:
        """What the loop is told of an error; the error itself where it is a defect."""
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        match error:
            case ModelError():
                failure = error
            case APIStatusError():
                headers = error.response.headers
                failure = error_of_status(error.status_code, error.body, headers, time.time())
            case APITimeoutError():
                failure = _network(f"{self._where} did not answer in time; try again later, or allow more time")
            case APIConnectionError():
                failure = self._no_connection(error.__cause__ or error)
            case APIError():
                failure = error_in_stream(error.body)
            case json.JSONDecodeError() | UnicodeDecodeError() | RecursionError():
                failure = ModelError(
                    f"{self._where} sent something that is no JSON; is it a server for chat completions?",
                    kind="provider_invalid_response",
                )
            case _:
                if not _is_of_transport(error):
                    return error
                failure = self._no_connection(error)
        return self._without_key(failure)

    def _no_connection(self, cause: BaseException) -> ModelError:
        said = str(cause) or type(cause).__name__
        return _network(f"the connection to {self._where} failed: {said}; check the base URL and the network")

    def _unfinished(self, content_type: str, came: int) -> ModelError:
        """The error of a response that ended before its message did."""
        if came or not content_type or content_type.startswith("text/event-stream"):
            return _network(f"{self._where} ended its response before it was whole; try again")
        return ModelError(
            f"{self._where} answered with {content_type.partition(';')[0]} in place of a stream of events; check the "
            "base URL",
            kind="provider_invalid_response",
        )

    def _without_key(self, error: ModelError) -> ModelError:
        """The same, where a server quotes the key that it was given."""
        text = str(error)
        if not self._key or self._key not in text:
            return error
        return ModelError(
            text.replace(self._key, "…"), kind=error.kind, retryable=error.retryable, retry_after=error.retry_after
        )


_END: Final = object()


async def _next(response: "AsyncStream[object]", translation: ChatStream) -> object:
    """The next event of a stream, or ``_END``. Once the message is whole, whatever happens ends the stream."""
    try:
        return await anext(response)
    except StopAsyncIteration:
        return _END
    except Exception:
        if translation.finished:
            return _END
        raise


def _network(text: str) -> ModelError:
    return ModelError(text, kind="provider_network", retryable=True)


def _is_of_transport(error: Exception) -> bool:
    return any(kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(error).__mro__)


def _shown(url: str) -> str:
    """A URL for messages: without what may be secret in it. Raises ModelError where it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise ModelError(
            "the base URL does not begin with http:// or https:// and a host; look at base_url or OPENAI_BASE_URL",
            kind="provider_invalid_request",
        )
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"
