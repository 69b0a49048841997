"""Applying: put a mutant in place in this process, for good. Only forked processes should do so.

A mutant inside of a function replaces the code of that function, so it can be put in place after
everything was imported. Any other mutant, of a table or of a class's body, is put in place while
its module is imported: other modules may hold what the module defines.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, FunctionType, ModuleType

from .operators import Mutant
from .sources import ROOT, module_of

__all__ = ["Functions", "Unfit", "import_mutated"]


class Unfit(Exception):  # noqa: N818 - not an error: the mutant is put in place at its import
    """The mutant does not fit into the function that exists."""


class Functions:
    """All functions of some files that exist in this process."""

    def __init__(self, paths: Sequence[str]) -> None:
        files = {str(ROOT / path): path for path in paths}
        self._found: dict[tuple[str, str, int], list[FunctionType]] = {}
        gc.unfreeze()
        for made in gc.get_objects():
            if type(made) is not FunctionType or made.__code__.co_filename not in files:
                continue
            code = made.__code__
            key = files[code.co_filename], code.co_qualname, code.co_firstlineno
            self._found.setdefault(key, []).append(made)

    def replace(self, mutant: Mutant) -> None:
        """Replace the code of the mutant's function.

        Raises:
            Unfit: The mutant is in no function, or its code needs another closure.
        """
        functions, code = self.check(mutant)
        for function in functions:
            function.__code__ = code

    def check(self, mutant: Mutant) -> tuple[list[FunctionType], CodeType]:
        """Return the functions to change, and their new code.

        Raises:
            Unfit: As for `replace`.
        """
        place = mutant.place
        functions = self._found.get((place.path, place.function, place.first), [])
        for code in _codes(_compiled(mutant)):
            if (code.co_qualname, code.co_firstlineno) == (place.function, place.first):
                closures = {made.__code__.co_freevars for made in functions}
                if closures == {code.co_freevars}:
                    return functions, code
        raise Unfit(mutant.name)


def _compiled(mutant: Mutant) -> CodeType:
    file = ROOT / mutant.place.path
    return compile(mutant.tree(file.read_text()), str(file), "exec")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def import_mutated(mutant: Mutant) -> None:
    """Let the mutant's module, which was not imported yet, be imported with the mutant in it.

    Raises:
        Unfit: The module was imported before.
    """
    finder = _Finder(mutant)
    if finder.module in sys.modules:
        raise Unfit(mutant.name)
    sys.meta_path.insert(0, finder)


class _Finder(MetaPathFinder):
    """Finds the one module that is mutated."""

    def __init__(self, mutant: Mutant) -> None:
        self.module = module_of(mutant.place.path)
        self._loader = _Loader(self.module, mutant)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self.module:
            return None
        return spec_from_file_location(fullname, self._loader.path, loader=self._loader)


class _Loader(SourceFileLoader):
    """Loads it, and leaves `__pycache__` alone."""

    def __init__(self, module: str, mutant: Mutant) -> None:
        super().__init__(module, str(ROOT / mutant.place.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        return _compiled(self._mutant)
