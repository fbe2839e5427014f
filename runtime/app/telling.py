"""What the factory of a session's backend tells of its runs before there is a backend; else what the app does."""

from collections.abc import Sequence

import attrs

from ...journal.events import JsonObject
from ..continuation.shapes import Prospect
from ..dispatch import Authorize
from ..errors import describe
from ..lifecycle import log
from ..tools.base import Tool
from .definition import App


@attrs.frozen
class Telling:
    """``settings`` are the session's: their ``backend`` names the factory. One that the app lacks tells nothing."""

    app: App
    settings: JsonObject

    @property
    def _factory(self) -> object:
        return self.app.backends.get(str(self.settings.get("backend", "")))

    @property
    def tells_tools(self) -> bool:
        """Does it say which tools its backends have? Else they may have others than the app's."""
        return hasattr(self._factory, "tools")

    @property
    def tools(self) -> Sequence[Tool]:
        own: Sequence[Tool] | None = getattr(self._factory, "tools", None)
        return self.app.tools if own is None else own

    @property
    def tool_names(self) -> Sequence[str]:
        names: Sequence[str] | None = getattr(self._factory, "tool_names", None)
        return [tool.name for tool in self.tools] if names is None else names

    @property
    def authorize(self) -> Authorize | None:
        """What is asked before a call."""
        hook: Authorize | None = getattr(self._factory, "authorize", None)
        return hook

    @property
    def handoff(self) -> bool | None:
        """Can runs of its backends be handed over? None where it does not tell."""
        told: object = getattr(self._factory, "handoff", None)
        return told if isinstance(told, bool) else None

    def prospect(self) -> Prospect:
        """What a run of the session would be made of now. A factory that fails at telling tells nothing of that."""
        tell = getattr(self._factory, "known", None)
        known: object = None
        try:
            known = tell(self.settings, self.app.tools) if callable(tell) else None
        except Exception as error:
            log.warning("what a run would be made of cannot be told: %s", describe(error, typed=True))
        return Prospect(known if isinstance(known, dict) else {}, self.handoff)
