"""Calls whose outcome is unknown: what they were called with, and what they turn out to be. No I/O of its own."""
