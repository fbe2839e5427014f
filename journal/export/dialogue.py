"""Neutral messages → a dialogue whose parts every provider takes: calls with their results, images looked at. No I/O.

What stands in place of something is a text in square brackets that says what, and why it is not there.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import attrs

from .. import images, wording
from ..errors import JournalError
from ..events import JsonObject
from .arguments import clean

ReadBlob = Callable[[str], bytes]
#: What becomes of thinking: left out, kept where it is signed, or kept as text.
Thinking = Literal["none", "signed", "text"]

_STATES: Final = ("ok", "error", "cancelled", "unknown", "not_started")
_LIMITS: Final = images.Limits()


@attrs.frozen
class Text:
    text: str


@attrs.frozen
class Picture:
    """``data``: base64. ``image`` is None where it is kept though no provider may take it."""

    media_type: str
    data: str
    image: images.Image | None


@attrs.frozen
class Thought:
    """Signed thinking has a ``signature``; redacted thinking has only ``data``."""

    text: str
    signature: str
    data: str | None = None

    @property
    def signed(self) -> bool:
        """Can it be given back as it was? An empty text may once have been longer."""
        return bool(self.data) or (self.signature != "" and self.text != "" and clean(self.text) == self.text)


Part = Text | Picture


@attrs.frozen
class Result:
    """``content`` is never empty."""

    content: list[Part]
    is_error: bool
    state: str


@attrs.define(eq=False)
class Call:
    call_id: str
    name: str
    arguments: str
    result: Result


@attrs.define(eq=False)
class Said:
    """What a user says; never empty."""

    content: list[Part]


@attrs.define(eq=False)
class Answer:
    """What the assistant says and then calls; not both are empty, and no thought stands last."""

    content: list[Text | Thought]
    calls: list[Call]


Dialogue = list[Said | Answer]


def dialogue(
    messages: Iterable[Any],
    *,
    read_blob: ReadBlob | None = None,
    whole: bool = False,
    keep_images: bool = False,
    thinking: Thinking = "none",
) -> Dialogue:
    """The dialogue that neutral messages are. Never raises for what they hold; the user begins.

    Two answers in a row are one; what users say in a row is not joined. A result belongs to the nearest call before it
    that is open and has its id; one of no call is said by the user. ``read_blob`` gives what a ``ref`` names, or raises
    JournalError. ``whole``: texts that were shortened are read. ``keep_images``: images that no provider may take stay.
    """
    building = _Building(_Reader(read_blob, whole, keep_images), thinking)
    for message in messages:
        if isinstance(message, dict):
            building.add(message.get("role"), message.get("content"))
    out = building.out
    if out and isinstance(out[0], Answer):
        out.insert(0, Said([Text("[No message stands before this answer.]")]))
    if not keep_images:
        _bound(out)
    return out


@attrs.frozen
class _Reader:
    """Blocks → parts."""

    read_blob: ReadBlob | None
    whole: bool
    keep_images: bool

    def parts(self, blocks: object) -> list[Part]:
        return [part for block in _blocks(blocks) if (part := self.part(block)) is not None]

    def part(self, block: JsonObject) -> Part | None:
        """None of a text that says nothing."""
        kind = block.get("kind")
        if kind == "image":
            return self._image(block)
        text = self.text(block) if kind != "file" else _named(block)
        return Text(text) if text.strip() else None

    def text(self, block: JsonObject) -> str:
        text, ref = block.get("text"), block.get("ref")
        if isinstance(ref, str) and (self.whole or not isinstance(text, str)):
            data = self._read(ref) if self.whole else None
            if data is not None:
                return data.decode("utf-8", "replace")
            if not isinstance(text, str):
                return f"[text: {_bytes(block)} that are kept apart]"
        if isinstance(text, str):
            return clean(text)
        kind = block.get("kind")
        return f"[{clean(kind) if isinstance(kind, str) else 'something'}: the content is not shown]"

    def _read(self, ref: str) -> bytes | None:
        if self.read_blob is None:
            return None
        try:
            return self.read_blob(ref)
        except JournalError:
            return None

    def _image(self, block: JsonObject) -> Part:
        coded, ref, said = block.get("data"), block.get("ref"), block.get("media_type")
        data = images.decoded(coded) if isinstance(coded, str) else self._read(ref) if isinstance(ref, str) else None
        if data is None:
            return Text(_removed("its bytes are not at hand" if coded is None else "its data is no base64"))
        image, plain = images.look(data), base64.b64encode(data).decode()
        why = image if isinstance(image, str) else images.too_big(image, len(plain), _LIMITS, many=False)
        if why is None and isinstance(image, images.Image):
            return Picture(image.media_type, plain, image)
        if not self.keep_images:
            return Text(_removed(why or ""))
        known = image.media_type if isinstance(image, images.Image) else said if isinstance(said, str) else "image/png"
        return Picture(known, plain, None)


def _removed(why: str) -> str:
    return f"[image removed: {why}]"


def _named(block: JsonObject) -> str:
    told = [clean(value) for key in ("name", "media_type") if isinstance(value := block.get(key), str) and value]
    return f"[file: {', '.join([*told, _bytes(block)])}]"


def _bytes(block: JsonObject) -> str:
    size, data = block.get("bytes"), block.get("data")
    if type(size) is int:
        return f"{size} bytes"
    return f"{len(images.decoded(data) or b'')} bytes" if isinstance(data, str) else "of unknown size"


def _blocks(content: object) -> Iterator[JsonObject]:
    if isinstance(content, str):
        yield {"kind": "text", "text": content}
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield block
        elif isinstance(block, str):
            yield {"kind": "text", "text": block}


@attrs.define(eq=False)
class _Building:
    """The dialogue as far as it has come; ``open`` are the calls without a result, by id, oldest first."""

    reader: _Reader
    thinking: Thinking
    out: Dialogue = attrs.field(factory=list)
    open: dict[str, list[tuple[int, Call]]] = attrs.field(factory=dict)
    batches: int = 0

    def add(self, role: object, content: object) -> None:
        if role == "assistant":
            self._answer(content)
            return
        said: list[Part] = []
        for block in _blocks(content):
            if block.get("kind") == "tool_result":
                said += self._result(block)
            elif (part := self.reader.part(block)) is not None:
                said.append(part)
        if said:
            self.out.append(Said(said))

    def _answer(self, content: object) -> None:
        parts: list[Text | Thought] = []
        calls: list[Call] = []
        late = False
        for block in _blocks(content):
            kind = block.get("kind")
            if kind == "tool_call":
                calls.append(self._call(block))
            elif kind in ("thinking", "redacted_thinking"):
                late = late or bool(calls)
                parts.append(_thought(self.reader, block))
            elif kind == "image":
                parts.append(Text(_removed("it is the assistant's, and providers take the user's only")))
            elif (part := self.reader.part(block)) is not None and isinstance(part, Text):
                parts.append(part)
        parts = self._thoughts(parts, calls, late)
        if not parts and not calls:
            return
        last = self.out[-1] if self.out else None
        if isinstance(last, Answer) and not last.calls:
            last.content += parts
            last.calls += calls
        else:
            self.out.append(Answer(parts, calls))

    def _thoughts(self, parts: list[Text | Thought], calls: list[Call], late: bool) -> list[Text | Thought]:
        """Without thinking, unless all of it can stay; ``late``: some of it would have to change its place."""
        thoughts = [part for part in parts if isinstance(part, Thought)]
        if self.thinking == "text":
            # It becomes text beside the message, which something has to be left of.
            keeps = bool(calls) or len(thoughts) < len(parts)
        else:
            last = isinstance(parts[-1], Thought) if parts and not calls else False
            keeps = self.thinking == "signed" and not late and not last and all(part.signed for part in thoughts)
        return parts if keeps else [part for part in parts if isinstance(part, Text)]

    def _call(self, block: JsonObject) -> Call:
        call_id, name, arguments = block.get("call_id"), block.get("name"), block.get("arguments")
        call_id = call_id if isinstance(call_id, str) else ""
        nobody_knows = Result([Text(wording.unknown_outcome(None))], True, "unknown")
        call = Call(call_id, name if isinstance(name, str) else "", _argument_text(arguments), nobody_knows)
        self.open.setdefault(call_id, []).append((len(self.out), call))
        return call

    def _result(self, block: JsonObject) -> list[Part]:
        """Put a result to its call; what is to be said where it has none."""
        call_id, state = block.get("call_id"), block.get("state")
        call_id = call_id if isinstance(call_id, str) else ""
        failed = block.get("is_error") is True
        state = state if isinstance(state, str) and state in _STATES else "error" if failed else "ok"
        content = self.reader.parts(block.get("content"))
        waiting = self.open.get(call_id)
        if not waiting:
            return [Text(wording.result_without_request("", clean(call_id), state)), *content]
        newest = waiting[-1][0]
        place = next(number for number, (batch, _) in enumerate(waiting) if batch == newest)
        nothing = Text("(no output)" if state == "ok" else f"(the call ended as {state}, and nothing was said)")
        waiting.pop(place)[1].result = Result(content or [nothing], failed or state != "ok", state)
        return []


def _thought(reader: _Reader, block: JsonObject) -> Thought:
    text, signature, data = block.get("text"), block.get("signature"), block.get("data")
    whole = isinstance(text, str) and "ref" not in block
    return Thought(
        text if isinstance(text, str) else "",
        signature if isinstance(signature, str) and whole else "",
        data if block["kind"] == "redacted_thinking" and isinstance(data, str) else None,
    )


def _argument_text(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    try:
        return "" if arguments is None else json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        return ""


def _bound(out: Dialogue) -> None:
    """Where images are many, providers take smaller ones only."""
    lists = [step.content for step in out if isinstance(step, Said)]
    lists += [call.result.content for step in out if isinstance(step, Answer) for call in step.calls]
    if sum(isinstance(part, Picture) for content in lists for part in content) <= images.MANY:
        return
    for content in lists:
        for place, part in enumerate(content):
            if isinstance(part, Picture) and part.image is not None:
                why = images.too_big(part.image, len(part.data), _LIMITS, many=True)
                if why is not None:
                    content[place] = Text(_removed(why))
