"""A turn over a model and tools, written to a session's journal as it goes: ``loop.Loop`` is where to begin."""
