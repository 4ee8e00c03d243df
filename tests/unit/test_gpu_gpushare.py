"""The tables of `kubectl inspect gpushare`, beside what that command printed on clusters of the same numbers."""

from typing import Any

from nodeplug_gpu import gpushare

GIB = 1 << 30


def card(index: int, units: int, *pods: tuple[str, int], sharing: str = "memory", unit: int = GIB) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "sharing": sharing,
        "units": units,
        "card_units": units,
        "allocated_units": sum(held for _, held in pods),
        "unit_bytes": unit,
        "containers": [
            {"namespace": "default", "pod": pod, "container": f"c{number}", "units": held, "card_units": held}
            for number, (pod, held) in enumerate(pods)
        ],
    }


def test_the_short_form_has_a_column_per_card() -> None:
    assert gpushare.summary("node1", "192.168.0.71", [card(0, 15, ("a", 6)), card(1, 15)]) == (
        "NAME   IPADDRESS     GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "node1  192.168.0.71  6/15                   0/15                   6/30\n"
        "------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "6/30 (20%)  "
    )


def test_the_rule_is_as_long_as_the_original_draws_it_for_eight_cards() -> None:
    lines = gpushare.summary("dev-server-153", "192.168.0.153", [card(index, 23) for index in range(8)]).splitlines()
    assert lines[2] == 95 * "-"
    assert lines[4] == "0/184 (0%)  "


def test_the_long_form_has_a_row_per_pod_and_the_sums_in_its_columns() -> None:
    pods = ("tf-jupyter-954ffbbf8-lztc9", 3), ("tf-jupyter2-69b6f97566-j4f4w", 3)
    assert gpushare.details("node5", "10.202.115.1", [card(0, 7, *pods)]) == (
        "\n"
        "NAME:       node5\n"
        "IPADDRESS:  10.202.115.1\n"
        "\n"
        "NAME                          NAMESPACE  GPU0(Allocated)\n"
        "tf-jupyter-954ffbbf8-lztc9    default    3\n"
        "tf-jupyter2-69b6f97566-j4f4w  default    3\n"
        "Allocated :                   6 (85%)\n"
        "Total :                       7\n"
        "----------------------------------------------------------------------------------------\n"
        "\n"
        "\n"
        "Allocated/Total GPU Memory In Cluster:  6/7 (85%)  "
    )


def test_the_long_form_of_a_node_without_pods() -> None:
    assert gpushare.details("node5", "10.202.115.1", [card(0, 7)]).splitlines()[4:8] == [
        "NAME         NAMESPACE  GPU0(Allocated)",
        "Allocated :  0 (0%)",
        "Total :      7",
        "----------",
    ]


def test_containers_of_a_pod_are_one_row_with_the_cards_in_their_columns() -> None:
    text = gpushare.details("n", "a", [card(1, 8, ("b", 1), ("a", 2), ("a", 1)), card(0, 8, ("b", 4))])
    assert [line.split() for line in text.splitlines()[5:7]] == [["a", "default", "0", "3"], ["b", "default", "4", "1"]]


def test_cards_that_are_shared_otherwise_are_left_out() -> None:
    text = gpushare.summary("n", "a", [card(0, 4, sharing="replicas"), card(1, 8, ("a", 2))])
    assert "GPU0" not in text
    assert text.endswith("2/8 (25%)  ")


def test_a_node_without_units_has_no_row() -> None:
    assert gpushare.summary("n", "a", []).splitlines() == [
        "NAME  IPADDRESS  GPU Memory(units)",
        20 * "-",
        "Allocated/Total GPU Memory In Cluster:",
        "0/0 (0%)  ",
    ]


def test_the_unit_is_told_as_it_is() -> None:
    def unit(*sizes: int) -> str:
        cards = [card(index, 8, unit=size) for index, size in enumerate(sizes)]
        return gpushare.summary("n", "a", cards).splitlines()[0].partition("Memory")[2]

    assert [unit(GIB), unit(1 << 20), unit(4 << 20), unit(GIB, 1 << 20)] == ["(GiB)", "(MiB)", "(4 MiB)", "(units)"]
