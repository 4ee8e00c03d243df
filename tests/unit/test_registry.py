"""The registry: who owns which claims, which hooks a plugin may have, and who is called."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from nodeplug import (
    Claim,
    CniClaim,
    CniResult,
    Device,
    DeviceClaim,
    DeviceList,
    ExclusiveClaim,
    NotFound,
    ResourceName,
    hookimpl,
)
from nodeplug.hosting.registry import Registry
from nodeplug.loading.classes import Found, PluginRefused, validate_config
from nodeplug.loading.discovery import find


class Net:
    def __init__(self, *claims: Claim) -> None:
        self._claims = list(claims) or [CniClaim("net")]
        self.deleted = 0

    @hookimpl
    def claims(self) -> Any:
        return self._claims

    @hookimpl
    def cni_add(self, request: Any) -> CniResult:
        return CniResult()

    @hookimpl
    def cni_del(self) -> None:
        self.deleted += 1


class Audit:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def claims(self) -> list[Claim]:
        return []

    @hookimpl(wrapper=True)
    def cni_del(self, request: Any) -> Iterator[None]:
        self.seen.append(request)
        return (yield)


def test_a_call_reaches_the_owner_alone() -> None:
    registry = Registry()
    one, other = Net(CniClaim("one")), Net(CniClaim("other"))
    registry.load("one", one, "d")
    registry.load("other", other, "d")
    registry.route("cni", "one").callers["cni_del"](request=None)
    assert (one.deleted, other.deleted) == (1, 0)


def test_a_wrapper_of_another_plugin_sees_the_call() -> None:
    registry = Registry()
    audit = Audit()
    registry.load("net", Net(), "d")
    registry.load("audit", audit, "d")
    registry.route("cni", "net").callers["cni_del"](request="r")
    assert audit.seen == ["r"]


def test_an_unloaded_wrapper_sees_nothing_more() -> None:
    registry = Registry()
    audit = Audit()
    registry.load("audit", audit, "d")
    registry.load("net", Net(), "d")
    registry.exchange(["audit"], ())
    registry.route("cni", "net").callers["cni_del"](request="r")
    assert audit.seen == []


def test_callers_stay_while_nobody_else_wraps_the_hooks() -> None:
    registry = Registry()
    registry.load("audit", Audit(), "d")
    registry.load("net", Net(CniClaim("net")), "d")
    before = dict(registry.plugins["net"].callers)
    registry.load("other", Net(CniClaim("other")), "d")
    assert all(registry.plugins["net"].callers[hook] is caller for hook, caller in before.items())


def test_two_owners_of_one_claim_are_both_named() -> None:
    registry = Registry()
    registry.load("first", Net(), "dist-a 1.0")
    with pytest.raises(PluginRefused, match=r"'second' of dist-b 2.0 claims cni:net, which plugin 'first' of dist-a"):
        registry.load("second", Net(), "dist-b 2.0")
    assert list(registry.plugins) == ["first"]


def test_many_plugins_with_and_without_wrappers_are_loaded_side_by_side() -> None:
    registry = Registry()
    audits = [Audit(), Audit()]
    for number in range(4):
        registry.load(f"net{number}", Net(CniClaim(f"net{number}")), "d")
    for number, audit in enumerate(audits):
        registry.load(f"audit{number}", audit, "d")
    registry.route("cni", "net2").callers["cni_del"](request="r")
    assert [audit.seen for audit in audits] == [["r"], ["r"]]


def test_a_plugin_that_is_being_loaded_gets_no_call_of_another() -> None:
    registry = Registry()
    registry.load("first", Net(CniClaim("first")), "d")
    first = registry.route("cni", "first").callers["cni_del"]
    late: list[Net] = []

    class Late(Net):
        @hookimpl
        def claims(self) -> Any:
            first(request=None)  # as a call in another thread would, in the middle of this load
            return [CniClaim("late")]

    late.append(Late())
    registry.load("late", late[0], "d")
    assert late[0].deleted == 0


def test_a_plugin_that_is_a_plain_dataclass_can_be_loaded() -> None:
    @dataclass
    class Plain:
        name: str

        @hookimpl
        def claims(self) -> list[Claim]:
            return [DeviceClaim(self.name)]

        @hookimpl
        def device_list(self) -> list[Device]:
            return []

    registry = Registry()
    registry.load("one", Plain("a/one"), "d")
    registry.load("two", Plain("a/two"), "d")
    assert (
        registry.route("device", "a/two").callers["device_list"](request=DeviceList(resource=ResourceName("a/two")))
        == []
    )


def test_an_unknown_claim_lists_what_is_served() -> None:
    registry = Registry()
    registry.load("net", Net(), "d")
    with pytest.raises(NotFound, match="no enabled plugin serves cni 'nte'; served: net"):
        registry.route("cni", "nte")


def test_an_async_hook_is_refused() -> None:
    class Async(Net):
        @hookimpl
        async def cni_add(self, request: Any) -> CniResult:  # type: ignore[override]
            return CniResult()

    with pytest.raises(PluginRefused, match="cni_add is `async def`"):
        Registry().load("a", Async(), "d")


def test_a_hook_that_yields_is_refused() -> None:
    class Lazy:
        @hookimpl
        def claims(self) -> list[Claim]:
            return [DeviceClaim("a/lazy")]

        @hookimpl
        def device_list(self) -> Iterator[Device]:
            yield from ()

    with pytest.raises(PluginRefused, match=r"device_list contains `yield`.*; return a list or tuple, or mark it"):
        Registry().load("lazy", Lazy(), "d")


def test_a_misnamed_hook_is_refused_and_nothing_stays() -> None:
    class Misnamed(Net):
        @hookimpl
        def cni_dle(self) -> None: ...

    registry = Registry()
    with pytest.raises(PluginRefused, match="cni_dle"):
        registry.load("m", Misnamed(), "d")
    registry.load("m", Net(), "d")


def test_a_wrong_argument_name_is_refused() -> None:
    class Wrong(Net):
        @hookimpl
        def cni_check(self, wanted: Any) -> None: ...

    with pytest.raises(PluginRefused, match="wanted"):
        Registry().load("w", Wrong(), "d")


def test_a_plugin_without_claims_is_refused() -> None:
    class Silent:
        @hookimpl
        def start(self) -> None: ...

    with pytest.raises(PluginRefused, match="answers to nothing"):
        Registry().load("s", Silent(), "d")


def test_a_claim_without_its_required_hook_is_refused() -> None:
    class WithoutDel:
        @hookimpl
        def claims(self) -> list[Claim]:
            return [CniClaim("x")]

        @hookimpl
        def cni_add(self) -> CniResult:
            return CniResult()

    with pytest.raises(PluginRefused, match="claims cni:x but has no cni_del"):
        Registry().load("n", WithoutDel(), "d")


def test_claims_that_raise_are_refused_with_the_reason() -> None:
    class Broken(Net):
        @hookimpl
        def claims(self) -> Any:
            raise OSError("disk on fire")

    with pytest.raises(PluginRefused, match="OSError: disk on fire"):
        Registry().load("b", Broken(), "d")


def test_the_one_claim_of_the_contract_before_1_0_is_refused_with_what_to_write_instead() -> None:
    class Old(Net):
        @hookimpl
        def claims(self) -> Any:
            return [Claim("device", "example.com/x")]  # type: ignore[call-arg]

    with pytest.raises(PluginRefused, match=r"removed in API 1: return CniClaim\(name\), DeviceClaim\(name\)"):
        Registry().load("old", Old(), "d")


def test_one_section_alone_has_an_exclusive_claim() -> None:
    class Cards:
        def __init__(self, resource: str) -> None:
            self.resource = resource

        @hookimpl
        def claims(self) -> list[Claim]:
            return [ExclusiveClaim("cards"), DeviceClaim(self.resource)]

        @hookimpl
        def device_list(self) -> list[Device]:
            return []

    registry = Registry(order=("a", "b"))
    registry.load("a", Cards("example.com/a"), "d")
    with pytest.raises(PluginRefused, match="plugin 'b' of d claims exclusive:cards, which plugin 'a' of d owns"):
        registry.load("b", Cards("example.com/b"), "d")


def test_a_claim_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(PluginRefused, match="which is a str, not a Claim"):
        Registry().load("b", Net("net"), "d")  # type: ignore[arg-type]


def test_a_plugin_without_config_refuses_any_key() -> None:
    found = find(f"{Registry.__module__}:Registry")
    with pytest.raises(PluginRefused, match=r"plugins\.x\.config\.size: unknown key; allowed: none"):
        validate_config("x", found, {"size": 1})


def test_the_example_device_value_has_safe_defaults() -> None:
    assert Device(id="a").numa_nodes == ()  # type: ignore[arg-type]


class Seats:
    @hookimpl
    def claims(self) -> list[Claim]:
        return [DeviceClaim("example.com/seat")]

    @hookimpl
    def device_list(self) -> list[Device]:
        return []


class Misspelt(Seats):
    @hookimpl
    def device_alocate(self, request: Any) -> None: ...


class Nameless(Seats):
    @hookimpl
    def bicycle(self) -> None: ...


class Greedy(Seats):
    @hookimpl
    def device_allocate(self, request: Any, pod: Any) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        (Misspelt(), "there is no hook 'device_alocate'; is it device_allocate\\?$"),
        (Nameless(), "there is no hook 'bicycle'; there are claims, "),
        (Greedy(), "device_allocate has no argument 'pod'; it may take request$"),
    ],
)
def test_a_wrong_name_is_told_with_the_right_one(plugin: object, sentence: str) -> None:
    with pytest.raises(PluginRefused, match=sentence):
        Registry().load("seats", plugin, "d")


def test_a_key_for_a_plugin_without_config_is_refused_with_the_reason() -> None:
    with pytest.raises(PluginRefused, match=r"allowed: none: the plugin's class has no Config$"):
        validate_config("seats", Found(Seats, "d"), {"count": 2})
