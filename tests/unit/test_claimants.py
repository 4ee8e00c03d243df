"""Of several plugins that claim one name, the first in the configuration serves it."""

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeplug.config import PluginSection
from nodeplug.contract.values import CniClaim
from nodeplug.hosting.claimants import settle
from nodeplug.hosting.slot import Instance, Slot
from nodeplug.loading.examination import Examined


def one(name: str, *claims: str) -> Instance:
    examined = Examined(distribution="d", claims=tuple(CniClaim(claim) for claim in claims))
    return Instance(Slot(name), PluginSection(), examined)


def test_an_earlier_one_that_comes_later_takes_the_place() -> None:
    verdict = settle({"b": one("b", "net")}, [one("a", "net")], ("a", "b"))
    assert [loaded.name for loaded in verdict.accepted] == ["a"]
    assert verdict.displaced == {
        "b": "plugin 'b' of d claims cni:net, which plugin 'a' of d owns: it comes first in the configuration; "
        "disable one of the two"
    }


def test_a_later_one_is_refused() -> None:
    verdict = settle({"a": one("a", "net")}, [one("b", "net")], ("a", "b"))
    assert (verdict.accepted, list(verdict.refused), verdict.displaced) == ([], ["b"], {})


def test_one_that_is_displaced_gives_its_other_names_free() -> None:
    present = {"b": one("b", "net", "more")}
    verdict = settle(present, [one("a", "net"), one("c", "more")], ("a", "b", "c"))
    assert [loaded.name for loaded in verdict.accepted] == ["a", "c"]


def test_of_those_without_an_order_the_present_one_stays() -> None:
    assert list(settle({"a": one("a", "net")}, [one("b", "net")], ()).refused) == ["b"]


PLUGINS = st.dictionaries(
    st.sampled_from("abcdef"), st.sets(st.sampled_from("xyz"), min_size=1, max_size=3), min_size=1
)


def serving(arrivals: Sequence[Instance], order: Sequence[str]) -> set[str]:
    """Let plugins come one by one, the refused ones again after each, until nothing changes any more."""
    present: dict[str, Instance] = {}
    for count in range(1, len(arrivals) + 1):
        while True:
            verdict = settle(present, [one for one in arrivals[:count] if one.name not in present], order)
            if not verdict.accepted and not verdict.displaced:
                break
            for name in verdict.displaced:
                del present[name]
            present.update({one.name: one for one in verdict.accepted})
    return set(present)


@settings(deadline=None)
@given(PLUGINS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_never_matters(plugins: dict[str, set[str]], random: Random) -> None:
    order = sorted(plugins)
    everyone = [one(name, *sorted(claims)) for name, claims in plugins.items()]
    at_once = {loaded.name for loaded in settle({}, everyone, order).accepted}
    random.shuffle(everyone)
    assert serving(everyone, order) == at_once
