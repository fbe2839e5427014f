"""What runs: an app gives backends and tools; ``find_app`` and ``load_app`` are the one way to name it."""

from ..continuation.safety import SafetyInspector
from .definition import App
from .loading import load_app
from .naming import AppSource, find_app

__all__ = ["App", "AppSource", "SafetyInspector", "find_app", "load_app"]
