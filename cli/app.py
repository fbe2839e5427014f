"""The entry point: runs a command and turns whatever comes out of it into an exit code and at most one sentence."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from .console import Console


def main() -> NoReturn:
    """The console script `maka`."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run `maka` with these arguments; never raises for what a person or a file can cause. Gives the exit code."""
    try:
        from .console import standard

        console = standard()
        # People put it at the end of the line that failed; the parser would take it at the beginning only.
        end = argv.index("--") if "--" in argv else len(argv)
        debug = "--debug" in argv[:end]
        arguments = [word for i, word in enumerate(argv) if word != "--debug" or i > end]
        try:
            from .tree import invoke

            code = invoke(arguments, console)
            console.flush()
            return code
        except Exception as error:
            return _explain(error, console, debug)
    except KeyboardInterrupt:
        return 130


def _explain(error: Exception, console: "Console", debug: bool) -> int:
    from .failures import failure_of

    if debug:
        import traceback

        # Of a process that was started for it, what that wrote tells more than the way to here.
        more = getattr(error, "log", "") or "".join(traceback.format_exception(error))
        for row in more.splitlines():
            console.say(row, "dim")
    failure = failure_of(error)
    if failure.sentence is not None:
        console.say(f"maka: {failure.sentence}", "red")
    return failure.code
