"""`python -m chop.cli` is `mase`."""

import sys

from chop.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
