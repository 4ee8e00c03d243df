"""The measure of reloads while cards are held, with one of them: it runs, and names every figure of its table."""

import pytest

from bench import measures
from bench.reloading import measure

pytestmark = pytest.mark.whole


def test_every_figure_of_the_table_is_measured() -> None:
    assert {*measures.RELOADING} <= {*measure(1)}
