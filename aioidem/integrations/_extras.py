"""The error of an integration whose library is not installed."""

from __future__ import annotations

__all__ = ["missing_library"]


def missing_library(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error that says which of aioidem's extras installs a missing library.

    Args:
        error: What the import of the library raised.
        extra: The extra's name.
    """
    library = (error.name or "a library").partition(".")[0]
    return ModuleNotFoundError(
        f"this integration needs {library}: pip install 'aioidem[{extra}]'",
        name=error.name,
        path=error.path,
    )
