"""`python -m chunkwise.checkpoint`: see tool.py."""

import sys

from chunkwise.checkpoint.tool import main
from chunkwise.cli import command

if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
