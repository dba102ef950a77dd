"""`python -m chunkwise VERB ...`, the same as the console script `chunkwise`."""

import sys

from chunkwise.cli.verbs import main

if __name__ == "__main__":
    sys.exit(main())
