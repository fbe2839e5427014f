"""Going on after a crash: whether a session can, why not if not, and the new run that does (docs/continuations.md)."""
