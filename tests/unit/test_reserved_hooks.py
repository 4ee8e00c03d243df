"""Hooks and errors that are settled and that nothing calls yet."""

import pytest

from nodeplug import (
    AlreadyExists,
    Claim,
    DeviceContainer,
    InProgress,
    InUse,
    InvalidRequest,
    OutOfRange,
    PluginError,
    TryAgain,
    Uncertain,
    hookimpl,
)
from nodeplug.contract.errors import wire
from nodeplug.contract.hookspecs import ANSWERS, RESERVED
from nodeplug.hosting.registry import Registry

NAMES = ["cni_repair", "device_place", "device_container"]


def test_what_is_reserved_is_part_of_the_contract() -> None:
    assert set(NAMES) == RESERVED <= ANSWERS.keys()


class Ready:
    """Has two of them."""

    @hookimpl
    def claims(self) -> list[Claim]:
        return []

    @hookimpl
    def device_place(self) -> None: ...

    @hookimpl
    def device_container(self, request: DeviceContainer) -> None: ...


def test_a_plugin_may_have_reserved_hooks_already() -> None:
    assert Registry().load("ready", Ready(), "d").hooks == {"claims", "device_place", "device_container"}


@pytest.mark.parametrize(
    ("error", "base", "cni", "grpc"),
    [
        (AlreadyExists, InvalidRequest, 7, "ALREADY_EXISTS"),
        (OutOfRange, InvalidRequest, 7, "OUT_OF_RANGE"),
        (InUse, PluginError, 999, "FAILED_PRECONDITION"),
        (InProgress, TryAgain, 11, "ABORTED"),
        (Uncertain, TryAgain, 11, "UNAVAILABLE"),
    ],
)
def test_the_errors_of_provisioning_have_their_row(
    error: type[PluginError], base: type[PluginError], cni: int, grpc: str
) -> None:
    row = wire(error("no"))
    assert issubclass(error, base)
    assert (row.cni, row.grpc, row.flex) == (cni, grpc, "Failure")
