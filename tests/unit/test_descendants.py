"""Which processes belong to the tests, though process ids come again."""

from tests.descendants import Lineage


def test_a_grandchild_belongs_to_a_process_also_when_its_parent_has_ended() -> None:
    lineage = Lineage(10)
    lineage.forked(10, 11)
    lineage.forked(11, 12)
    lineage.executed(12)
    assert lineage.executing() == {12}


def test_what_others_start_does_not() -> None:
    lineage = Lineage(10)
    lineage.forked(1, 11)
    lineage.executed(11)
    assert lineage.executing() == set()


def test_an_id_that_comes_again_belongs_to_who_has_it() -> None:
    lineage = Lineage(10)
    lineage.forked(10, 11)
    lineage.forked(1, 11)
    lineage.executed(11)
    assert lineage.executing() == set()
    lineage.forked(10, 11)
    lineage.executed(11)
    assert lineage.executing() == {11}


def test_an_id_that_two_had_in_one_test_tells_nothing_of_it() -> None:
    lineage = Lineage(10)
    for parent in (1, 10):
        lineage.forked(parent, 11)
        lineage.executed(11)
    assert lineage.executing() == set()


def test_what_was_told_before_events_were_lost_is_forgotten() -> None:
    """Somebody else may have had the id of 12 since, and still have it: that fork was lost."""
    lineage = Lineage(10)
    for child in (11, 12):
        lineage.forked(10, child)
    lineage.executed(11)
    lineage.begin_anew({10, 11})
    assert lineage.executing() == set()
    lineage.forked(12, 13)
    for pid in (11, 12, 13):
        lineage.executed(pid)
    assert lineage.executing() == {11}
