"""What is looked at before a plugin is loaded: its claims' names, and methods without the mark."""

from typing import Any

import pytest

from nodeplug import (
    CniClaim,
    Device,
    DeviceClaim,
    ExclusiveClaim,
    InvalidRequest,
    VolumeClaim,
    hookimpl,
)
from nodeplug.loading.examination import check_claim, unmarked


@pytest.mark.parametrize("name", ["", "all cards", "../cards"])
def test_an_exclusive_claim_needs_a_name_that_people_can_read(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the name of an exclusive claim"):
        check_claim(ExclusiveClaim(name))


def test_claims_of_one_name_are_equal_whatever_they_say_besides() -> None:
    assert CniClaim("x", gives_way=True) == CniClaim("x")
    assert VolumeClaim("a/x", fs_group="none") == VolumeClaim("a/x")
    assert len({DeviceClaim("a/x"), VolumeClaim("a/x")}) == 2


@pytest.mark.parametrize("name", ["example.com/fuse", "example.com/UP_per.x", "a/b", "nvidia.com/mig-1g.5gb"])
def test_extended_resource_names_are_accepted(name: str) -> None:
    check_claim(DeviceClaim(name))


@pytest.mark.parametrize(
    "name",
    [
        "noslash",
        "kubernetes.io/x",
        "requests.example.com/x",
        "example.com/a b",
        "example.com/",
        "Ex.com/a",
        "a/b/c",
        "example.com/" + "x" * 64,
        "a" * 245 + "/x",
        "example.com/x\n",
    ],
)
def test_names_that_kubelet_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_claim(DeviceClaim(name))


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "-x", "a\n", "x" * 101])
def test_names_that_cannot_be_executables_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_claim(CniClaim(name))


def test_a_method_without_the_mark_is_found() -> None:
    class Forgetful:
        @hookimpl
        def device_list(self) -> list[Device]:
            return []

        def device_allocate(self, request: Any) -> None: ...

    class Marked(Forgetful):
        @hookimpl
        def device_allocate(self, request: Any) -> None: ...

    assert unmarked(Forgetful) == ("device_allocate",)
    assert unmarked(Marked) == ()
