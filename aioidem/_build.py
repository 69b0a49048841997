"""What is installed: aioidem's version, and whether its compiled module or pure Python runs."""

from __future__ import annotations

from typing import Literal, NamedTuple

from aioidem._hot import WHY_PURE

__all__ = ["BuildInfo", "__version__", "build_info"]

__version__ = "0.1.0.dev0"


class BuildInfo(NamedTuple):
    """The version of aioidem, and what it runs with in this process.

    Attributes:
        version: aioidem's version.
        hot_path: "compiled" if records are encoded and keys hashed by the compiled module, "pure"
            if by Python code. Both give the same bytes.
        why: The reason for "pure", else None.
        python: The implementation and version of Python.
        free_threaded: Whether this Python was built without the global interpreter lock (PEP 703).
    """

    version: str
    hot_path: Literal["compiled", "pure"]
    why: str | None
    python: str
    free_threaded: bool

    def __str__(self) -> str:
        """Return one line for a person, as `aioidem --version` prints it."""
        form = "compiled" if self.why is None else f"pure Python, because {self.why}"
        return f"aioidem {self.version} (hot path: {form})"


def build_info() -> BuildInfo:
    """Return the version of aioidem, and whether its hot path is compiled.

    Returns:
        Facts about this process, to log or to attach to a report of a bug or a benchmark.
    """
    # Imported here, because a program that only sends records needs neither module.
    import platform
    import sysconfig

    return BuildInfo(
        version=__version__,
        hot_path="compiled" if WHY_PURE is None else "pure",
        why=WHY_PURE,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )
