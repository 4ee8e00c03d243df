"""The measure of cards by claims, with few of them: it runs, and names every figure of its table."""

import pytest

from bench import measures
from bench.claimed import measure

pytestmark = pytest.mark.whole


def test_every_figure_of_the_table_is_measured() -> None:
    assert {*measures.CLAIMED} <= {*measure(1, 2, 1)}
