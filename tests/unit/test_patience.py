"""How often one thing is restored before it is left alone."""

from nodeplug_net.level.reconciler import FIRST_REST, LIMIT, LONGEST_REST, WINDOW, Patience


def restored(patience: Patience, *times: float) -> Patience:
    for now in times:
        assert patience.left(now) == 0.0
        patience.count(now)
    return patience


def fought() -> Patience:
    return restored(Patience(), *range(LIMIT))


def test_what_is_restored_often_within_the_window_is_left_alone() -> None:
    assert fought().left(LIMIT - 1) == FIRST_REST


def test_what_is_restored_often_in_longer_time_is_restored_again() -> None:
    times = [number * WINDOW / 2 for number in range(LIMIT * 3)]
    assert restored(Patience(), *times).left(times[-1]) == 0.0


def test_who_goes_on_after_the_pause_waits_twice_as_long_each_time() -> None:
    patience, now, rests = fought(), float(LIMIT - 1), []
    for _ in range(6):
        rests.append(patience.left(now))
        now += rests[-1]
        restored(patience, now)
    assert rests == [30.0, 60.0, 120.0, 240.0, 480.0, LONGEST_REST]


def test_what_held_for_long_is_restored_as_before() -> None:
    patience = fought()
    later = LIMIT + 2 * FIRST_REST + WINDOW
    assert restored(patience, later).left(later) == 0.0


def test_the_reason_says_that_somebody_else_removes_it_and_how_to_find_who() -> None:
    assert "somebody else removes it again" in fought().reason(LIMIT)
    assert "`ip monitor` and `nft monitor`" in fought().reason(LIMIT)


def test_the_reason_of_a_failure_is_the_failure() -> None:
    assert Patience(failure="no memory").reason(0.0) == "it cannot be restored: no memory"
