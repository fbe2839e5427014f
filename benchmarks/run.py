"""All benchmarks, or those that are named: python benchmarks/run.py [NAME...]. Each prints one table."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    there = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "run" and not path.stem.startswith("_"))
    unknown = [name for name in names if name not in there]
    if unknown:
        print(f"no benchmark is called {unknown[0]!r}; there are {', '.join(there)}", file=sys.stderr)
        return 2
    failed = [name for name in names or there if subprocess.call([sys.executable, str(HERE / f"{name}.py")])]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
