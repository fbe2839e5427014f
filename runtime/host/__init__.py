"""The host: one process owns a root, many clients use it."""
