"""`python -m specdec`."""

import sys

from specdec.cli.main import run

if __name__ == "__main__":
  sys.exit(run())
