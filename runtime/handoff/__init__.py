"""A run that is paused at a step boundary, and the successor that finishes its turn."""
