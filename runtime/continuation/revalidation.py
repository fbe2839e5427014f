"""A plan against the facts as they are now: still the same, or the code of what has changed. No I/O."""
