"""`python -m aioidem`: the same command line as the `aioidem` script.

Nothing lives here: importing `aioidem` must never pull in the command line's libraries, so this
module is the only one of the top level that names `aioidem._cli`.
"""

from __future__ import annotations

import sys

from aioidem._cli import main

if __name__ == "__main__":
    sys.exit(main())
