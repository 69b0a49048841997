"""`python -m aioidem`: the same command line as the `aioidem` script.

The code of the command line is in `aioidem._cli`. Of the modules at the top level only this one
imports `aioidem._cli`, so that `import aioidem` never loads the command line's libraries.
"""

from __future__ import annotations

import sys

from aioidem._cli import main

if __name__ == "__main__":
    sys.exit(main())
