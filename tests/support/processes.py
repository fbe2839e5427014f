"""Real child processes that a test talks to by lines."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


class Child:
    """A Python child that runs ``code``; it sees the tests' support and ``sys.argv[1:]`` as given."""

    def __init__(self, code: str, *arguments: object) -> None:
        prefix = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", prefix + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that the child prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
