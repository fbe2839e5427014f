"""The sentences of what a scan finds: one function a finding, so that the scan itself reads as rules. No I/O."""

from .events import Event
from .findings import Finding


def _of(code: str, message: str, event: Event) -> Finding:
    return Finding(code, message, seq=event.seq, offset=event.offset, length=event.length)


def missing(first: int, last: int) -> str:
    """``event 4 is missing`` or ``events 4 to 6 are missing``."""
    return f"event {first} is missing" if first == last else f"events {first} to {last} are missing"


# ---------------------------------------------------------------- numbers and sums


def mismatch(event: Event, expected: int) -> Finding:
    """The sum does not fit, or the number is not believed; ``expected`` is the one under which the line stands."""
    if event.seq == expected:
        message = f"the bytes of event {expected} ({event.type}) differ from what was hashed when it was written"
    else:
        says = f"a line of type {event.type} says it is event {event.seq}"
        message = f"{says} where event {expected} stands; its number is not believed"
    return Finding("sum_mismatch", message, seq=expected, offset=event.offset, length=event.length)


def gap(event: Event, first: int) -> Finding:
    """The numbers from ``first`` up to this event's are missing."""
    return _of("seq_gap", f"{missing(first, event.seq - 1)} before event {event.seq}", event)


def duplicate(event: Event) -> Finding:
    return _of("duplicate_line", f"event {event.seq} stands twice, byte for byte; the second is passed over", event)


def conflict(number: int | None, offset: int, length: int) -> Finding:
    message = (
        f"event {number} stands in two versions that chain on from one line (two writers); "
        "this one is not in the branch that goes on"
    )
    return Finding("seq_conflict", message, seq=number, offset=offset, length=length)


def unfinished_batch(first: Event) -> Finding:
    return _of("turn_order", f"event {first.seq} begins a batch that the lines behind it do not finish", first)


# ---------------------------------------------------------------- bytes


def looks(span: bytes) -> str:
    """What bad bytes look like."""
    nuls = span.count(b"\0")
    if nuls:
        return f"{nuls} NUL bytes"
    try:
        span.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return "the beginning of an event" if span.startswith(b'{"seq":') else "not an event line"


def oversized(length: int) -> str:
    """What a line beyond the limit looks like."""
    return f"a line of {length} bytes, more than a line may hold"


def damaged(offset: int, length: int, what: str) -> Finding:
    """Bad bytes; where there are none, the seam of two events."""
    if length:
        message = f"{length} bytes at offset {offset} are no event ({what})"
    else:
        message = f"two events are welded at offset {offset}: no LF stands between them"
    return Finding("damaged_line", message, offset=offset, length=length)


def torn(offset: int, length: int) -> Finding:
    if length:
        message = f"the last write stopped after {length} bytes of an unfinished line or batch at offset {offset}"
    else:
        message = f"the last event lacks its LF at offset {offset}; it is whole and is kept"
    return Finding("torn_tail", message, offset=offset, length=length)


def empty(size: int) -> Finding:
    return Finding("empty", "the file holds no event" if size else "the file has zero bytes", offset=0, length=size)


def bom() -> Finding:
    message = "the file begins with a byte order mark, which is not part of the journal"
    return Finding("bom", message, offset=0, length=3)


def crlf(offset: int, count: int) -> Finding:
    """``offset``: of the first such line."""
    return Finding("crlf", f"{count} lines end with CR LF; the CR is not hashed", offset=offset, count=count)


def blank(offset: int, count: int) -> Finding:
    """``offset``: of the first such line."""
    return Finding("blank_line", f"{count} blank lines are passed over", offset=offset, count=count)


# ---------------------------------------------------------------- events


def missing_header(event: Event) -> Finding:
    what = f"the first event that stands is {event.seq} ({event.type})"
    message = f"the journal does not begin with its header; {what}"
    return Finding("missing_header", message, offset=event.offset, length=event.length)


def unsupported_format(header: Event) -> Finding:
    said = header.data["format"]
    return _of("unsupported_format", f"the journal is of format {said} and this version reads format 1", header)


def unsupported_event(event: Event) -> Finding:
    what = f"event {event.seq} is of the type {event.type}, which this version does not know and may not skip"
    return _of("unsupported_event", what, event)


def lossy(event: Event) -> Finding:
    what = f"event {event.seq} ({event.type}) holds text that is not Unicode; U+FFFD is shown in its place"
    return _of("lossy_text", what, event)


def other_session(header: Event, name: str) -> Finding:
    message = f"the header names {header.data.get('session_id')!r} and the directory is {name!r}"
    return Finding("session_id_mismatch", message, seq=0, offset=header.offset)
