"""Runs turns of many sessions on backends: starts, stops, cleanup, quarantine. ``kernel.RuntimeKernel`` is the face."""
