"""`maka app`: which app is configured, and what it would run."""

from typing import Annotated

import typer

from . import exits
from .console import Console
from .journal import Json, Root
from .parsing import Command, Group

app = typer.Typer(cls=Group, rich_markup_mode=None)

AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:OBJECT",
        help="The app; $MAKA_APP or `app` below `[maka]` in config.toml under the root if not given.",
    ),
]


@app.callback(invoke_without_command=True)
def _app(context: typer.Context) -> int:
    """Look at what sessions are run with."""
    from .tree import help_of

    return help_of(context)


@app.command(cls=Command)
def show(context: typer.Context, name: AppName = None, as_json: Json = False, root: Root = None) -> int:
    """Say which app is configured, by whom, and what it has.

    Its backends, which of them can hand a turn over as far as they tell, its tools, and what each permission mode does
    with them. The app's module is imported, which runs its code; no session is touched.

    Exit code: 0 shown, 2 no app, or one that cannot be loaded.
    """
    from . import documents, render

    console: Console = context.obj
    doc = documents.application(name, root)
    if as_json:
        console.document(doc)
    else:
        console.write(render.application(doc, console.paint))
    return exits.DONE
