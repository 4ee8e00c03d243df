"""A CUDA program without any package: `python -I -c TEXT LIBRARY`; commands and replies are lines of JSON.

Owns: the calls of libcuda (CUDA Driver API, cuda.h) and a few kernels as PTX text, which every driver compiles itself.
Refuses: to judge: a reply has the error's number and the call that returned it.

Python's standard library alone, and no import of ours: it also runs where only the driver and Python are mounted.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

KERNELS = """
.version %s
.target %s
.address_size 64
.visible .entry mark(.param .u64 place, .param .u32 value) {
    .reg .u64 %%rd<5>;
    .reg .u32 %%r<7>;
    ld.param.u64 %%rd1, [place];
    ld.param.u32 %%r1, [value];
    mov.u32 %%r2, %%tid.x;
    mov.u32 %%r3, %%ctaid.x;
    mov.u32 %%r4, %%ntid.x;
    mad.lo.u32 %%r5, %%r3, %%r4, %%r2;
    mul.wide.u32 %%rd2, %%r5, 4;
    add.u64 %%rd3, %%rd1, %%rd2;
    add.u32 %%r6, %%r5, %%r1;
    st.global.u32 [%%rd3], %%r6;
    ret;
}
.visible .entry multiply(.param .u64 place, .param .u32 value) {
    .reg .u64 %%rd<2>;
    .reg .u32 %%r<3>;
    .reg .f32 %%f<4>;
    .reg .pred %%p<2>;
    ld.param.u64 %%rd1, [place];
    ld.param.u32 %%r1, [value];
    mov.f32 %%f1, 0f3F800000;
    mov.f32 %%f2, 0f3F7FFFFF;
    mov.u32 %%r2, 0;
again:
    fma.rn.f32 %%f1, %%f1, %%f2, %%f2;
    fma.rn.f32 %%f1, %%f1, %%f2, %%f2;
    fma.rn.f32 %%f1, %%f1, %%f2, %%f2;
    fma.rn.f32 %%f1, %%f1, %%f2, %%f2;
    add.u32 %%r2, %%r2, 1;
    setp.lt.u32 %%p1, %%r2, %%r1;
    @%%p1 bra again;
    st.global.f32 [%%rd1], %%f1;
    ret;
}
"""
TARGETS = (("6.4", "sm_50"), ("6.4", "sm_75"), ("7.0", "sm_80"), ("7.8", "sm_90"))
"""Version of PTX and the least card. A driver that no longer knows the first ones takes a later one."""
THREADS, BLOCKS = 128, 4
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
U64, U32, POINTER = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p


class CudaError(Exception):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(call)
        self.call, self.code = call, code


class Cuda:
    """One context on the first device that CUDA shows."""

    def __init__(self, library: str) -> None:
        self.cuda = ctypes.CDLL(library)
        self.device, self.context, self.module = ctypes.c_int(), POINTER(), POINTER()
        self.held: list[Any] = []
        self.launches = 0
        self.failed: int | None = None

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def start(self) -> dict[str, Any]:
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        uuids = [self.uuid(number) for number in range(count.value)]
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        found = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(found), MULTIPROCESSORS, self.device)
        return {"count": count.value, "uuids": uuids, "multiprocessors": found.value, **self.memory()}

    def uuid(self, number: int) -> str:
        device, data = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDeviceGetUuid", ctypes.byref(data), device)
        text = bytes(data).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def memory(self) -> dict[str, Any]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free": free.value, "total": total.value}

    def allocate(self, size: int) -> Any:
        place = U64()
        self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        self.held.append(place)
        return place

    def fill(self, step: int, most: int) -> dict[str, Any]:
        """Allocate until the driver refuses, or so many bytes are reached."""
        held = 0
        while held + step <= most:
            try:
                self.allocate(step)
            except CudaError as error:
                return {"held": held, "error": error.code, "call": error.call}
            held += step
        return {"held": held}

    def free(self) -> dict[str, Any]:
        while self.held:
            self.call("cuMemFree_v2", self.held.pop())
        return {}

    def function(self, name: str) -> Any:
        if not self.module:
            self.compile()
        found = POINTER()
        self.call("cuModuleGetFunction", ctypes.byref(found), self.module, name.encode())
        return found

    def compile(self) -> None:
        for target in TARGETS:
            try:
                self.call("cuModuleLoadData", ctypes.byref(self.module), (KERNELS % target).encode())
            except CudaError:
                if target == TARGETS[-1]:
                    raise
            else:
                return

    def launch(self, name: str, place: int, value: int, blocks: int = BLOCKS) -> None:
        first, second = U64(place), U32(value)
        arguments = (POINTER * 2)(ctypes.addressof(first), ctypes.addressof(second))
        function = self.function(name)
        self.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")

    def compute(self, value: int = 7) -> dict[str, Any]:
        """Have every thread write a number, and read all of them back."""
        count = THREADS * BLOCKS
        place = self.allocate(4 * count)
        self.launch("mark", place.value, value)
        numbers = (U32 * count)()
        self.call("cuMemcpyDtoH_v2", numbers, place, ctypes.c_size_t(4 * count))
        self.held.remove(place)
        self.call("cuMemFree_v2", place)
        return {"right": list(numbers) == list(range(value, value + count))}

    def fault(self, kind: str) -> dict[str, Any]:
        """Write where no memory is, or to an odd address."""
        self.launch("mark", 0x10 if kind == "address" else self.allocate(4096).value + 1, 7)
        return {}

    def work(self, seconds: float, blocks: int) -> dict[str, Any]:
        """Multiply in a thread of its own, on all multiprocessors with enough blocks."""
        place = self.allocate(4096).value

        def multiply() -> None:
            end = time.monotonic() + seconds
            try:
                self.call("cuCtxSetCurrent", self.context)
                while time.monotonic() < end:
                    self.launch("multiply", place, 20000, blocks)
                    self.launches += 1
            except CudaError as error:
                self.failed = error.code

        threading.Thread(target=multiply, daemon=True).start()
        return {}

    def progress(self) -> dict[str, Any]:
        return {"launches": self.launches, "failed": self.failed}

    def load(self, names: list[str]) -> dict[str, Any]:
        """Load libraries by their names; return why one cannot be."""
        said: dict[str, Any] = {}
        for name in names:
            try:
                ctypes.CDLL(name)
                said[name] = ""
            except OSError as error:
                said[name] = str(error)
        return said

    def mapped(self) -> dict[str, Any]:
        """Return the files of the driver that this process has mapped."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
        return {"files": sorted(path for path in paths if "libcuda" in path or "libnvidia" in path)}

    def replace(self, path: str) -> dict[str, Any]:
        """Try what a tenant may try with what is mounted: to delete it, to rename it, to put something in its place."""
        said: dict[str, Any] = {}
        for what, step in (
            ("delete", Path(path).unlink),
            ("rename", lambda: Path(path).rename(path + ".moved")),
            ("create beside", lambda: os.close(os.open(path + ".new", os.O_CREAT | os.O_WRONLY))),
        ):
            try:
                step()
                said[what] = ""
            except OSError as error:
                said[what] = error.strerror
        return said


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a tenant that does not listen
    cuda: Cuda | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            cuda = cuda or Cuda(sys.argv[1])
            reply = getattr(cuda, command.pop("do"))(**command)
            reply = reply if isinstance(reply, dict) else {}
        except CudaError as error:
            reply = {"error": error.code, "call": error.call}
        except (OSError, AttributeError) as error:
            reply = {"error": -1, "call": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
