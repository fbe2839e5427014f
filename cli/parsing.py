"""Commands whose texts and flags are taken as they stand on the command line, without a conversion."""

from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

#: Characters of a first sentence, at most.
_SENTENCE: Final = 300


class _AsGiven:
    """In place of the parser's conversion, where there is nothing to convert."""

    def coerce(self, value: Any, **_: Any) -> Any:
        return value


def _as_given(parameters: list[Any]) -> list[Any]:
    """Keep the parser from loading its validation library for parameters that need none.

    That library takes longer to load than everything else together. In versions of the parser that do without it the
    attribute is missing, and nothing is done here.
    """
    for parameter in parameters:
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        if annotation in (str, bool) and hasattr(parameter, "_runtime_param"):
            parameter._runtime_param = _AsGiven()
    return parameters


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_given(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Some of the parser's errors do not say which command they are of, and so whose help helps.
            if hasattr(error, "format_message") and getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_given(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command with the whole of its first sentence."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_SENTENCE)) for name, each in commands if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class WrongUsage(typer.BadParameter):
    """Words that do not go together; the message says which."""

    def format_message(self) -> str:
        return self.message
