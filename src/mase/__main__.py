"""`python -m mase` is `mase`."""

import sys

from chop.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
