"""Bytes → events and findings; the only place that knows damage. No I/O."""
