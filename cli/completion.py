"""What a shell may complete: the session ids of a root."""

import os


def session_ids(incomplete: str) -> list[str]:
    """Ids under the user's root that begin with `incomplete`; none for a path (the shell knows those)."""
    if "/" in incomplete:
        return []
    from ..journal.store import default_root

    try:
        with os.scandir(default_root() / "sessions") as entries:
            return sorted(entry.name for entry in entries if entry.name.startswith(incomplete))
    except OSError:
        return []
