"""Packages import only what their contracts allow, and importing aioidem is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    """The import contracts in pyproject.toml hold: the layers, and which packages do no IO."""
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_package_loads_no_optional_dependency() -> None:
    """Importing aioidem loads no optional dependency."""
    optional = [
        *("cramjam", "hdrh", "pyspark", "rich", "trio", "typer", "uvloop"),
        *("aiokafka", "confluent_kafka", "kafka"),
    ]
    # kio imports hypothesis if it is installed, and hypothesis imports every package with a plugin.
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import aioidem, aioidem._config, aioidem.errors, aioidem.structs\n"
        "print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *optional],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert done.stdout.strip() == "[]"
