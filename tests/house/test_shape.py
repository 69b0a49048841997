"""The source keeps the structure that `shape.py` measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from .shape import Source, circles, sources, two_levels_in, way

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def library() -> list[Source]:
    """Parse every file of the package, once for this module."""
    return sources(ROOT, "aioidem")


def test_no_files_of_a_package_import_one_another_in_a_circle(library: list[Source]) -> None:
    """No files of one package import one another in a circle, not even for types alone."""
    assert list(circles(library)) == []


def test_nothing_reaches_through_the_core_into_its_parts(library: list[Source]) -> None:
    """Code outside of the engine never reaches through its core into a part (`core.part.name`)."""
    outside = [each for each in library if "engine" not in each.module]
    assert list(two_levels_in(outside)) == []


def test_the_way_of_a_record_is_up_to_date(library: list[Source]) -> None:
    """Each function that `shape.py` lists as a step of a record exists in the file it names."""
    count, *hops = way(library)
    assert count.startswith(f"{len(hops)} functions")
