"""The tree of commands: the root, its options, and what hangs below it."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from . import exits
from .app_command import app
from .console import Console
from .exporting import export
from .host import host
from .importing import import_
from .journal import journal
from .parsing import Command, Group
from .session import session
from .talking import chat, run

root = typer.Typer(name="maka", cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False)
journal.command(cls=Command)(export)
journal.command(name="import", cls=Command)(import_)
root.add_typer(journal, name="journal")
root.add_typer(session, name="session")
root.add_typer(app, name="app")
root.add_typer(host, name="host")
root.command(cls=Command)(run)
root.command(cls=Command)(chat)


def _version(asked: bool) -> None:
    if asked:
        from .. import __version__

        typer.echo(f"maka {__version__}")
        raise typer.Exit


@root.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show more when something fails; stands anywhere.")] = False,
) -> int:
    """Sessions of agents: run them, talk with them, look at their journals, repair them, go on with them.

    Every command answers on standard output and says everything else on standard error; --json gives one JSON document.
    """
    return help_of(context)


@root.command(cls=Command)
def demo(context: typer.Context) -> int:
    """Kill an agent in a tool call and mend its session.

    Everything happens in a temporary folder: a child process runs a turn with a real tool and is killed inside it; then
    its session is inspected, repaired, inspected again, and shown as a model would be given it.
    """
    from .demo import play

    return play(context.obj)


def help_of(context: typer.Context) -> int:
    """A group that is called without a command says what there is, as the error that it is."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        return exits.USAGE
    return exits.DONE


def invoke(arguments: Sequence[str], console: Console) -> int:
    """Parse and run. Raises whatever the command raises, and the parser's own errors for wrong usage."""
    answer: Any = get_command(root).main(args=list(arguments), prog_name="maka", standalone_mode=False, obj=console)
    return answer if isinstance(answer, int) else exits.DONE
