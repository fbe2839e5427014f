"""An app that hosts of tests run: what a turn plays is said by the text that it was sent."""

from maka.runtime import App, RunComposition
from maka.runtime.backends.base import SendInput, text_of
from maka.runtime.backends.scripted import Boundary, Never, Part, Permission, Question, Tool, scripted_backend
from maka.runtime.scripted import Fail, Say, Wait

QUESTIONS = [
    {"id": f"q{number}", "question": f"Which {number}?", "options": [{"label": "This"}, {"label": "That"}]}
    for number in (1, 2, 3)
]
SAME = "sha256:" + "0" * 64
COMPOSITION = RunComposition(
    composer_id="tests",
    composer_revision="1",
    base_system_prompt_hash=SAME,
    tool_catalog_hash=SAME,
    tool_availability_hash=SAME,
    base_provider_options_hash=SAME,
)


def play(input: SendInput) -> list[Part]:
    """``WORD …``: the first word says what is played."""
    text = text_of(input.content) or "again"
    word, _, rest = text.partition(" ")
    match word:
        case "ask":
            return [Question(QUESTIONS)]
        case "permit":
            return [Permission("write_file", {"path": rest or "a.txt"})]
        case "boundary":
            return [Boundary({"network": [rest or "example.org"]})]
        case "hold":
            return ["holding", Never()]
        case "steps":
            # Steps that take long enough to be met between two of them.
            return [part for number in range(int(rest or 3)) for part in (Tool("look", {"n": number}), Wait(0.05))]
        case "big":
            # So many KiB, as fast as they go.
            kib = int(rest or 64)
            return [Say("0123456789abcdef" * 64 * kib, pieces=kib)]
        case "fail":
            return ["half", Fail("provider_network", retryable=False)]
        case "quick":
            return [f"done: {rest}"]
    return [Say(f"received: {text}", pieces=max(len(text) // 9, 1), pause=0.045)]


app = App(
    backends={"scripted": scripted_backend(play, steps=True, composition=COMPOSITION)},
    default_backend="scripted",
    permission_mode="bypass",
)
