"""What bytes that are said to be an image really are, and whether a provider takes them. No I/O."""

import base64
import binascii
import re
import struct
from collections.abc import Callable
from typing import Final

import attrs

#: Images in one request from which on providers count them as many.
MANY: Final = 20
_BLANK: Final = re.compile(r"\s+")


@attrs.frozen
class Limits:
    """What a provider takes: ``base64`` characters, pixels of a ``side``, and of one where images are ``many``."""

    base64: int = 5 * 1024 * 1024
    side: int = 8_000
    side_of_many: int = 2_000


@attrs.frozen
class Image:
    """``media_type`` by the first bytes; ``width`` and ``height`` in pixels as the file's own head says."""

    media_type: str
    width: int
    height: int


def look(data: bytes) -> Image | str:
    """The image, or a few words on why these bytes are none that a provider takes."""
    for begins, media_type, size in _KINDS:
        if begins(data):
            try:
                width, height = size(data)
            except (struct.error, IndexError, ValueError):
                return f"it begins like {media_type} and is cut off or broken"
            if width < 1 or height < 1:
                return f"it begins like {media_type} and has no size"
            return Image(media_type, width, height)
    return "its bytes are not png, jpeg, gif or webp" if data else "it is empty"


def decoded(text: str) -> bytes | None:
    """The bytes of base64 with or without line breaks; None where it is none."""
    try:
        return base64.b64decode(_BLANK.sub("", text), validate=True)
    except (ValueError, binascii.Error):
        return None


def unusable(text: str) -> str | None:
    """Why no provider takes these characters as an image; None where they do."""
    data = decoded(text)
    if data is None:
        return "it is no base64"
    found = look(data)
    return found if isinstance(found, str) else too_big(found, len(text), Limits(), many=False)


def too_big(image: Image, characters: int, limits: Limits, *, many: bool) -> str | None:
    """Why an image that takes so many base64 characters is not taken; None where it is."""
    if characters > limits.base64:
        return f"it has {characters} bytes as base64, and at most {limits.base64} are taken"
    side = min(limits.side, limits.side_of_many) if many else limits.side
    if max(image.width, image.height) > side:
        among = f" among more than {MANY} images" if many else ""
        return f"it has {image.width} × {image.height} pixels, and at most {side} a side are taken{among}"
    return None


def _png(data: bytes) -> tuple[int, int]:
    if data[12:16] != b"IHDR":
        raise ValueError
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    """Segments are passed over up to the one that begins the frame."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD8:
            at += 1 if marker == 0xFF else 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        elif marker in (0xD9, 0xDA):
            raise ValueError
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + length
    raise ValueError


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return _short(data, 24, 3) + 1, _short(data, 27, 3) + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _short(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _short(data, 26, 2) & 0x3FFF, _short(data, 28, 2) & 0x3FFF
    raise ValueError


def _short(data: bytes, at: int, length: int) -> int:
    piece = data[at : at + length]
    if len(piece) != length:
        raise IndexError
    return int.from_bytes(piece, "little")


#: How such a file begins, its media type, and where its size stands.
_KINDS: Final[tuple[tuple[Callable[[bytes], bool], str, Callable[[bytes], tuple[int, int]]], ...]] = (
    (lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), "image/png", _png),
    (lambda data: data.startswith(b"\xff\xd8\xff"), "image/jpeg", _jpeg),
    (lambda data: data.startswith((b"GIF87a", b"GIF89a")), "image/gif", _gif),
    (lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", "image/webp", _webp),
)
