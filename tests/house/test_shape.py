"""The engine keeps its shape: `shape.py` measures it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .shape import Source, circles, sources, two_levels_in, way

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def library() -> list[Source]:
    """Parse every file of the package."""
    return sources(ROOT, "aioidem")


def test_no_files_of_a_package_import_one_another_in_a_circle(library: list[Source]) -> None:
    """A file can be read before the files that import it; imports for types alone count."""
    assert list(circles(library)) == []


def test_nothing_reaches_through_the_core_into_its_parts(library: list[Source]) -> None:
    """Outside of the engine a part of it is held, or asked through one method of the core."""
    outside = [each for each in library if "engine" not in each.module]
    assert list(two_levels_in(outside)) == []


def test_the_way_of_a_record_is_up_to_date(library: list[Source]) -> None:
    """Each function that `shape.py` lists as a hop of a record is where it says."""
    count, *hops = way(library)
    assert count.startswith(f"{len(hops)} functions")
