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


def test_lost_events_tell_nothing_and_the_next_test_is_seen() -> None:
    lineage = Lineage(10)
    lineage.forked(10, 11)
    lineage.executed(11)
    assert lineage.executing(lost=True) == set()
    lineage.executed(11)
    assert lineage.executing() == {11}
