"""NVML calls: every call of the driver process goes through `Calls`.

Owns: which symbols of the library are used, what NVML's return codes mean, and which call a thread waits for.
Refuses: to interpret answers.

NVML's own `nvmlErrorString` is not asked: it is one more call that a broken driver can hang in.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pynvml

from nodeplug_gpu.driver.wire import Pending

SYMBOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nvmlInitWithFlags": "nvmlInitWithFlags",
        "nvmlSystemGetDriverVersion": "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2": "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetUUID": "nvmlDeviceGetUUID",
        "nvmlDeviceGetName": "nvmlDeviceGetName",
        "nvmlDeviceGetMinorNumber": "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3": "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetCudaComputeCapability": "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo": "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetFieldValues": "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode": "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount": "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex": "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId": "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId": "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetAttributes_v2": "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2": "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetGraphicsRunningProcesses_v3": "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2": "nvmlDeviceGetGraphicsRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2": "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        "nvmlDeviceGetNvLinkState": "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlDeviceGetNvLinkRemotePciInfo",
        "nvmlDeviceGetTopologyCommonAncestor": "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetUtilizationRates": "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetProcessUtilization": "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetSupportedEventTypes": "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceRegisterEvents": "nvmlDeviceRegisterEvents",
        "nvmlEventSetCreate": "nvmlEventSetCreate",
        "nvmlEventSetFree": "nvmlEventSetFree",
        "nvmlEventSetWait_v2": "nvmlEventSetWait_v2",
        "nvmlDeviceSetMemoryLimits_v1": "nvmlDeviceSetMemoryLimits_v1",
        "nvmlDeviceGetMemoryLimits_v1": "nvmlDeviceGetMemoryLimits_v1",
    }
)
"""By symbol of the library that is used, the function of pynvml that calls it."""

_SLOW_CALLS: Final = frozenset({"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2"})
"""They attach to cards, which takes seconds for each card without persistence mode or another client."""
_SLOW_FACTOR: Final = 4

UNINITIALIZED: Final = 1
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
TOO_SMALL: Final = 7
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
LIB_RM_VERSION_MISMATCH: Final = 18
ARGUMENT_VERSION_MISMATCH: Final = 25
DEPRECATED: Final = 26
GPU_NOT_FOUND: Final = 28
UNKNOWN: Final = 999

MISSING: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED})
"""The card or the driver does not support the call."""
GONE: Final = frozenset({2, NOT_FOUND, GPU_NOT_FOUND})
"""There is no such card (any more)."""
DRIVER_WIDE: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""No further call of this process can succeed."""

_MEANINGS: Final[Mapping[int, str]] = {
    UNINITIALIZED: "the library is not initialised",
    2: "an argument is invalid",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission",
    NOT_FOUND: "not found",
    TOO_SMALL: "the answer did not fit",
    8: "the card lacks external power",
    DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded",
    TIMEOUT: "the driver timed out",
    11: "the card has an interrupt problem",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found",
    FUNCTION_NOT_FOUND: "the driver's library does not have this function",
    14: "the card's infoROM is corrupted",
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or has become inaccessible",
    RESET_REQUIRED: "the GPU requires a reset",
    17: "the operating system blocked the request",
    LIB_RM_VERSION_MISMATCH: "the library and the NVIDIA kernel module have different versions",
    19: "the GPU is in use",
    20: "out of memory",
    21: "no data",
    23: "out of resources",
    ARGUMENT_VERSION_MISMATCH: "the driver's library does not support this version of the structure",
    27: "not ready yet",
    GPU_NOT_FOUND: "there is no such GPU",
    29: "the GPU is in an invalid state",
    UNKNOWN: "unknown error",
}


class NvmlFailure(Exception):
    """An NVML call that failed.

    Attributes:
        code: NVML's number; 999 for an answer that could not be read.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def failure(symbol: str, code: int) -> NvmlFailure:
    """Return the failure of a call with NVML's number and its meaning."""
    return NvmlFailure(
        code, f"{symbol}: {_MEANINGS.get(code, 'an error that NVML does not document')} (NVML error {code})"
    )


class Calls:
    """The calls of one thread; any other thread may ask which one it waits for.

    Attributes:
        subject: what the next calls are about, for messages.
        card: its index.
    """

    def __init__(self) -> None:
        self.subject = ""
        self.card: int | None = None
        self._doing: tuple[str, str, int | None, float] | None = None

    @property
    def pending(self) -> Pending | None:
        """The call that has not returned yet."""
        doing = self._doing
        if doing is None:
            return None
        symbol, subject, card, since = doing
        slow_factor = _SLOW_FACTOR if symbol in _SLOW_CALLS else 1
        return Pending(f"{symbol} of {subject}" if subject else symbol, time.monotonic() - since, slow_factor, card)

    @contextlib.contextmanager
    def about(self, card: int, subject: str) -> Iterator[None]:
        """Set the card that the calls of a block are about."""
        self.card, self.subject = card, subject
        try:
            yield
        finally:
            self.card, self.subject = None, ""

    def __call__(self, symbol: str, *arguments: Any) -> Any:
        """Call a function of NVML through pynvml.

        Raises:
            NvmlFailure: it returned an error, or something that cannot be read.
        """
        function = getattr(pynvml, SYMBOLS[symbol], None)
        if function is None:  # this pynvml is older than the call
            raise failure(symbol, FUNCTION_NOT_FOUND)
        self._doing = (symbol, self.subject, self.card, time.monotonic())
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            raise failure(symbol, int(error.value)) from None
        except pynvml.NVMLLibraryMismatchError:
            raise failure(symbol, FUNCTION_NOT_FOUND) from None
        except (ValueError, ArithmeticError, LookupError, TypeError, MemoryError) as error:
            # Text that is not UTF-8, a count beyond all memory: pynvml trusts the library, this process does not.
            raise NvmlFailure(UNKNOWN, f"{symbol} returned garbage: {type(error).__name__}") from None
        finally:
            self._doing = None
