"""`python -m identiformer` is the console program `identiformer`."""

import sys

from .train.cli import main

if __name__ == "__main__":
    sys.exit(main())
