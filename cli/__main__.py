"""`python -m maka.cli` does what `maka` does."""

from .app import main

if __name__ == "__main__":
    main()
