"""The measure of scheduler extenders, with few calls: it runs, and names every figure of its table."""

import pytest

from bench import following, measures
from bench.extenders import measure

pytestmark = [pytest.mark.unprivileged, pytest.mark.whole]


def test_every_figure_of_the_table_is_measured() -> None:
    figures = {f"thread_{name}" for name in measure("thread", 3)}
    wanted = {name for name in measures.EXTENDERS if name.startswith("thread_")}
    assert wanted <= figures


def test_every_figure_of_the_extender_that_knows_the_cards_is_measured() -> None:
    figures = {f"cards_{name}" for name in following.measure(30, 10, 3)}
    assert {name for name in measures.EXTENDERS if name.startswith("cards_")} <= figures
