"""What the GPU driver's process is asked to do: sent until it has it, and to the next one where it was not to blame."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.driver.orders import LONGEST, Orders
from nodeplug_gpu.driver.wire import LimitAnswer

FIRST, SECOND = Uuid("GPU-0"), Uuid("GPU-1")


@pytest.fixture
def orders() -> Orders:
    return Orders()


def send(orders: Orders) -> dict[Uuid, int]:
    """Send all that is to be sent, and return the orders' numbers by card."""
    unsent = list(orders.unsent())
    for number, _ in unsent:
        orders.sent(number)
    return {Uuid(json.loads(line)["card"]): number for number, line in unsent}


def answers(orders: Orders, numbers: Mapping[Uuid, int]) -> dict[Uuid, str]:
    """Return what each is told who does not wait."""
    return {card: orders.wait(number, 0, "late").error for card, number in numbers.items()}


def give(orders: Orders) -> dict[Uuid, int]:
    """Give an order for each of two cards."""
    return {card: orders.add(card, Path("/c"), 1) for card in (FIRST, SECOND)}


def test_an_order_is_sent_until_a_process_has_it(orders: Orders) -> None:
    given = give(orders)
    assert [number for number, _ in orders.unsent()] == [*given.values()]
    assert send(orders) == given
    assert send(orders) == {}


def test_what_a_process_was_asked_that_hung_on_another_card_is_for_the_next_one(orders: Orders) -> None:
    given = give(orders)
    send(orders)
    orders.lost("it hangs", again=True, hung=FIRST)
    assert send(orders) == {SECOND: given[SECOND]}
    orders.answered(LimitAnswer(given[SECOND], 1))
    assert answers(orders, given) == {FIRST: "the driver was asked, and its process ended: it hangs", SECOND: ""}


def test_what_a_process_was_asked_that_was_replaced_as_planned_is_for_the_next_one(orders: Orders) -> None:
    given = give(orders)
    send(orders)
    orders.lost("the library was replaced", again=True)
    assert send(orders) == given


def test_what_a_process_was_asked_that_crashed_has_failed_and_the_rest_is_for_the_next_one(orders: Orders) -> None:
    given = {FIRST: orders.add(FIRST, Path("/c"), 1)}
    send(orders)
    given[SECOND] = orders.add(SECOND, Path("/c"), 1)
    orders.lost("it was ended by SIGSEGV")
    assert send(orders) == {SECOND: given[SECOND]}
    assert "SIGSEGV" in answers(orders, given)[FIRST]


def test_an_answer_that_came_before_the_end_holds(orders: Orders) -> None:
    given = give(orders)
    send(orders)
    orders.answered(LimitAnswer(given[SECOND], 1))
    orders.lost("it was ended by SIGSEGV")
    assert answers(orders, given)[SECOND] == ""


def test_an_order_that_nobody_waits_for_any_more_is_not_sent_again(orders: Orders) -> None:
    given = give(orders)
    send(orders)
    assert set(answers(orders, given).values()) == {"late"}
    orders.lost("it hangs", again=True)
    assert send(orders) == {}
    orders.sent(given[FIRST])


def test_an_order_that_fits_in_no_line_is_refused(orders: Orders) -> None:
    number = orders.add(FIRST, Path("/" + "c" * LONGEST), 1)
    assert send(orders) == {}
    assert orders.wait(number, 0, "late").error == "the path of the cgroup is too long"
