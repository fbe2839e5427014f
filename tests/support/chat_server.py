"""A server of chat completions that plays a script: one list of parts for each request, in the order they come."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import attrs


@attrs.frozen
class Status:
    """Answers with this status and body (JSON, or text as it is) in place of a stream."""

    code: int
    body: Any = None
    headers: dict[str, str] = attrs.Factory(dict)


@attrs.frozen
class Raw:
    """These bytes, as the body's next piece."""

    data: bytes


@attrs.frozen
class Wait:
    """Waits so many seconds, or for ``until``, or for the client to go. ``begun`` is called when it begins."""

    seconds: float | None = None
    until: asyncio.Event | None = None
    begun: Callable[[], object] = lambda: None


class Cut:
    """The connection ends here, in the middle of whatever it was."""


#: A part is one of those, or a JSON value: an event of the stream.
Part = Any


def delta(finish: str | None = None, **values: Any) -> dict[str, Any]:
    """An event with one choice: ``delta(content="Hello")``, ``delta("stop")``."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": values, "finish_reason": finish}],
    }


def call(index: int | None, call_id: str | None = None, name: str | None = None, arguments: str | None = None) -> Any:
    """A piece of a tool call, for the list ``delta(tool_calls=[…])``; what is None does not stand in it."""
    function = {"name": name, "arguments": arguments}
    piece = {"index": index, "id": call_id, "function": {k: v for k, v in function.items() if v is not None}}
    return {key: value for key, value in piece.items() if value is not None}


def usage(read: int, written: int, **details: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": written, **details}}


DONE = Raw(b"data: [DONE]\n\n")


def says(text: str, finish: str = "stop") -> list[Part]:
    """A whole response of one text in two pieces, with counts."""
    half = len(text) // 2
    return [delta(role="assistant", content=""), delta(content=text[:half]), delta(content=text[half:]), *ends(finish)]


def asks(*calls: tuple[str, str, str]) -> list[Part]:
    """A whole response that asks for calls at once: ``(id, name, arguments)`` each."""
    begun = [call(index, call_id, name, "") for index, (call_id, name, _) in enumerate(calls)]
    pieces = [call(index, arguments=arguments) for index, (_, _, arguments) in enumerate(calls)]
    return [delta(tool_calls=begun), *(delta(tool_calls=[piece]) for piece in pieces), *ends("tool_calls")]


def ends(finish: str) -> list[Part]:
    return [delta(finish), usage(7, 5), DONE]


class ChatServer:
    """``requests`` are the bodies it got, ``headers`` their headers; ``waits`` counts the parts of that kind which have
    begun, and ``gone`` is set when a client left in one.
    """

    def __init__(self, script: Iterable[list[Part]]) -> None:
        self._script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.waits = 0
        self.gone = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                headers, body = request
                self.headers.append(headers)
                self.requests.append(body)
                parts = self._script[len(self.requests) - 1]
                if not await self._answer(parts, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, parts: list[Part], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Plays one response; was it whole?"""
        begun = False
        for part in parts:
            if isinstance(part, Status):
                _status(writer, part)
                await writer.drain()
                return True
            if isinstance(part, Wait) and not await self._wait(part, reader):
                return False
            if isinstance(part, Cut):
                return False
            if isinstance(part, Wait):
                continue
            if not begun:
                begun = True
                _head(writer, 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
            data = part.data if isinstance(part, Raw) else b"data: " + json.dumps(part).encode() + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _wait(self, part: Wait, reader: asyncio.StreamReader) -> bool:
        """Is the client still there?"""
        self.waits += 1
        part.begun()
        left = asyncio.ensure_future(reader.read(1))
        until = [asyncio.ensure_future(part.until.wait())] if part.until is not None else []
        await asyncio.wait({left, *until}, timeout=part.seconds, return_when=asyncio.FIRST_COMPLETED)
        is_there = not left.done()
        for waiting in (left, *until):
            waiting.cancel()
        await asyncio.gather(left, *until, return_exceptions=True)
        if not is_there:
            self.gone.set()
        return is_there


@asynccontextmanager
async def chat_server(*script: list[Part]) -> AsyncIterator[ChatServer]:
    """A server on a port of its own, gone at the end with all its connections."""
    server = ChatServer(script)
    tasks: list[asyncio.Future[None]] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(server.serve(reader, writer)))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, str], dict[str, Any]] | None:
    """A request's headers and JSON body; None where the client has left."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.decode().strip().split("\r\n")
    assert line == "POST /v1/chat/completions HTTP/1.1", line
    headers = {name.lower(): value.strip() for name, _, value in (header.partition(":") for header in rest)}
    body = await reader.readexactly(int(headers["content-length"]))
    return headers, json.loads(body)


def _head(writer: asyncio.StreamWriter, code: int, headers: dict[str, str]) -> None:
    lines = [f"HTTP/1.1 {code} X", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())


def _status(writer: asyncio.StreamWriter, part: Status) -> None:
    body = part.body if isinstance(part.body, str) else json.dumps(part.body)
    kind = "text/html" if isinstance(part.body, str) else "application/json"
    headers = {"content-type": kind, "content-length": str(len(body.encode())), **part.headers}
    _head(writer, part.code, headers)
    writer.write(body.encode())
