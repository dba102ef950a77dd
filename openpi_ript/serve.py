"""`chunkwise serve` under the name that it had while only this package could: `python -m openpi_ript.serve RUN`."""

import sys

from chunkwise.policies.serve import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
