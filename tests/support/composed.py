"""What runs of tests are made of."""

from typing import Any

from maka.runtime.composition import RunComposition

SAME = "sha256:" + "0" * 64


def composed(**values: Any) -> RunComposition:
    """The same each time, but for what is given."""
    same: dict[str, Any] = {
        "composer_id": "test",
        "composer_revision": "1",
        "base_system_prompt_hash": SAME,
        "tool_catalog_hash": SAME,
        "tool_availability_hash": SAME,
        "base_provider_options_hash": SAME,
    }
    return RunComposition(**{**same, **values})
