"""The kubelet stand-in for callers without asyncio: its event loop runs in a thread of its own.

Owns: that thread, and one blocking method per step of a plugin author's test.
Refuses: rules of kubelet; they are all in `Kubelet`, which `stand_in` and `call` reach.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing.kubelet.stand_in import Kubelet, Wipe

_Value = TypeVar("_Value")
_LAST_TASKS = 5.0
"""Seconds that they get to end."""


class BlockingKubelet:
    """`Kubelet`, for tests that are ordinary functions.

        with BlockingKubelet(root / "var" / "lib" / "kubelet") as kubelet:
            kubelet.until_allocatable("example.com/fuse", 4)
            granted = kubelet.admit("pod", {"example.com/fuse": 1})["example.com/fuse"]

    Args:
        root: takes the place of /var/lib/kubelet; keep it short, socket paths have 107 bytes.
        options: the keyword arguments of `Kubelet`.

    Attributes:
        stand_in: the `Kubelet` itself; change and await it only through `call`, which runs on its loop.
    """

    def __init__(self, root: Path, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubelet", daemon=True)
        self._thread.start()
        self.stand_in = self.call(lambda: _made(root, options))

    def call(self, step: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
        """Await something on the loop of the stand-in, such as `lambda: kubelet.stand_in.drop_streams(name)`.

        Returns:
            Its result; an exception is raised here.

        Raises:
            RuntimeError: called in the condition of `until`, which runs on the loop and must not wait.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a condition of until() only looks: allocatable, capacity, registrations")

        async def run() -> _Value:
            return await step()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _look(self, step: Callable[[], _Value]) -> _Value:
        """Run something that does not wait, where the stand-in's state may be touched: on its loop."""
        if threading.current_thread() is self._thread:
            return step()

        async def run() -> _Value:
            return step()

        return self.call(run)

    # --- life

    def start(self, *, wipe: Wipe = "sockets") -> None:
        """Start as kubelet does; see `Kubelet.start`."""
        self.call(lambda: self.stand_in.start(wipe=wipe))

    def stop(self) -> None:
        """End: streams are dropped and both sockets go."""
        self.call(self.stand_in.stop)

    def kill(self) -> None:
        """End as by SIGKILL: kubelet.sock stays behind and refuses connections."""
        self.call(self.stand_in.kill)

    def restart(self, *, wipe: Wipe = "sockets") -> None:
        """Stop and start: every resource comes back without devices until it is registered again."""
        self.call(lambda: self.stand_in.restart(wipe=wipe))

    def close(self) -> None:
        """Stop, and end the thread; succeed when that was done before."""
        if self._loop.is_closed():
            return
        self.stop()
        self.call(_end_tasks)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what there is

    @property
    def registrations(self) -> Sequence[pb.RegisterRequest]:
        """Every registration that kubelet took, in order."""
        return self._look(lambda: tuple(self.stand_in.registrations))

    def allocatable(self, resource: str) -> int:
        """Return how many healthy devices a resource has."""
        return self._look(lambda: self.stand_in.allocatable(resource))

    def capacity(self, resource: str) -> int:
        """Return how many devices a resource has, unhealthy ones included."""
        return self._look(lambda: self.stand_in.capacity(resource))

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until a condition holds; it is asked often, on the loop of the stand-in.

        Raises:
            TimeoutError: it does not become true; with what kubelet has.
        """
        try:
            self.call(lambda: self.stand_in.until(condition, seconds))
        except TimeoutError:
            raise TimeoutError(f"kubelet waited {seconds:g} s in vain; it has {self._found()}") from None

    def until_allocatable(self, resource: str, count: int, seconds: float = 20.0) -> None:
        """Wait until a resource has exactly so many healthy devices.

        Raises:
            TimeoutError: with what kubelet has instead.
        """
        try:
            self.call(lambda: self.stand_in.until_allocatable(resource, count, seconds))
        except TimeoutError:
            raise TimeoutError(
                f"kubelet waited {seconds:g} s for {count} healthy devices of {resource} and has {self._found()}"
            ) from None

    def _found(self) -> str:
        known = {name: self.stand_in.allocatable(name) for name in self.stand_in.resources}
        return ", ".join(f"{name}: {healthy}" for name, healthy in sorted(known.items())) or "no resource at all"

    # --- pods

    def admit(
        self,
        pod: str,
        limits: Mapping[str, int],
        *,
        container: str = "main",
        namespace: str = "default",
        init: bool = False,
        numa: Collection[int] | None = None,
    ) -> Mapping[str, pb.ContainerAllocateResponse]:
        """Admit one container of a pod and allocate its devices; see `Kubelet.admit`.

        Returns:
            The plugins' answers by resource, with `devices`, `mounts`, `envs`, `annotations` and `cdi_devices`.

        Raises:
            AdmissionError: the pod is rejected, and holds nothing.
        """
        return self.call(
            lambda: self.stand_in.admit(pod, limits, container=container, namespace=namespace, init=init, numa=numa)
        )

    def start_container(self, pod: str, container: str = "main", namespace: str = "default") -> None:
        """Do what kubelet does before each start of a container: PreStartContainer where a plugin wants it.

        Raises:
            AdmissionError: the plugin failed or is down.
        """
        self.call(lambda: self.stand_in.start_container(pod, container, namespace))

    def remove_pod(self, pod: str, namespace: str = "default") -> None:
        """Forget a pod and free its devices."""
        self._look(lambda: self.stand_in.remove_pod(pod, namespace))


async def _end_tasks() -> None:
    """Cancel what gRPC still has on the loop, as `asyncio.run` does: a task that a loop leaves behind is printed."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_LAST_TASKS)


async def _made(root: Path, options: Mapping[str, Any]) -> Kubelet:
    return Kubelet(root, **options)
