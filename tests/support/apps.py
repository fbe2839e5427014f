"""Apps for tests, as the text of modules."""

#: A module that holds an app with two backends and two tools, the names of it, and a few other things.
WHOLE = '''\
"""An app."""

from maka.runtime.app import App
from maka.runtime.tools.command import Command
from maka.runtime.tools.write_file import WriteFile


def build(context):
    raise NotImplementedError


app = App(
    backends={"main": build, "other": build},
    default_backend="main",
    model="some-model",
    tools=[Command(), WriteFile()],
)


def make():
    return app
'''
