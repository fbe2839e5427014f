"""What both interfaces of OpenAI want of a result: text alone, and its images behind the batch. No I/O."""

from .dialogue import Call, Part, Picture, Text


def joined(parts: list[Part]) -> str:
    return "\n\n".join(part.text for part in parts if isinstance(part, Text))


def result_text(call: Call) -> str:
    """The text of a result; a failed one says so first, because there is no other place for it."""
    result = call.result
    said = joined(result.content)
    if any(isinstance(part, Picture) for part in result.content):
        said = f"{said}\n\n[images: in the message behind the results]".strip()
    return f"[{result.state if result.state != 'ok' else 'error'}] {said}" if result.is_error else said


def images_of(given: list[tuple[str, Call]]) -> list[Part]:
    """The images of a batch's results, each result's behind a text that names its call."""
    out: list[Part] = []
    for named, call in given:
        pictures = [part for part in call.result.content if isinstance(part, Picture)]
        if pictures:
            out += [Text(f"[images of the result of the call {named}]"), *pictures]
    return out


def url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{picture.data}"
