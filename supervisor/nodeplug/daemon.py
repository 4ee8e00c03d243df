"""The daemon: one event loop, one TaskGroup of named tasks.

Owns: the order of start and stop, signals, and the requests of the control socket.
Refuses: which part knows which (`parts`), protocols (the services know those), plugin code (the runner's), and any
cleanup at the end that the next start could not do: `stop()` may never run; start is recovery.
"""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from nodeplug.config import last_good, read
from nodeplug.config.watch import watch
from nodeplug.contract.errors import InvalidRequest, PluginError, TryAgain, clip
from nodeplug.contract.netns import Netns
from nodeplug.csi import drivers as csi
from nodeplug.device import pollers
from nodeplug.device.resources import Resources
from nodeplug.exec.frame import Frame, Reply
from nodeplug.exec.server import ExecServer
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner, close_all
from nodeplug.install import keeper
from nodeplug.install.drivers import reprobe
from nodeplug.observe import logs, own_calls
from nodeplug.observe.endpoints import Endpoints
from nodeplug.parts import Parts
from nodeplug.process import notify, tuning
from nodeplug.process.aside import aside
from nodeplug.process.end_by_alarm import SIGNALS, end_by_alarm
from nodeplug.process.lane import Lane
from nodeplug.process.succession import Predecessor
from nodeplug.process.waiting import every, until

LOG: Final = logging.getLogger(__name__)
START_PATIENCE: Final = 5.0
"""Seconds that plugins get to start, spooled DELs to be replayed, and entrypoints to be compiled, before callers are
served without them."""
LAST_ANSWERS: Final = 1.0
"""Seconds for answers that are on their way when every plugin has stopped."""
LONGEST_END: Final = 25
"""Seconds after SIGTERM at which an alarm ends a daemon that has not stopped; less than the 30 s of unit and chart."""
REGISTRATION_PATIENCE: Final = 5.0
"""Seconds that a daemon gives kubelet to register it before it takes the place of another."""
HEALTH_INTERVAL, HEALTH_PAUSE = 10.0, 0.05  # of itself, and where plugins ask for it
METRICS_INTERVAL: Final = 5.0
RETRY_INTERVAL: Final = 0.5
SAMPLE_INTERVAL: Final = 1.0


async def run(
    config_path: Path,
    root: Path | None = None,
    first: Resources | None = None,
    succeed: int | None = None,
    take_over: bool = False,
) -> int:
    """Run the daemon until SIGTERM or SIGINT, or until another one has taken its place.

    Args:
        config_path: the main configuration file.
        root: the value of `--root`.
        first: already serves what kubelet was told last.
        succeed: the descriptor of the socket to a daemon whose place is to be taken.
        take_over: see `serving.serve`.

    Returns:
        The exit status: 0 after a requested stop.

    Raises:
        ConfigError: the configuration cannot be used.
        PluginError: another daemon is already running, a folder cannot be made, or the predecessor keeps the node.
    """
    predecessor = Predecessor(succeed) if succeed is not None else None
    reading = await aside(lambda: read(config_path, root), "read the configuration")
    wrong = "\n".join(reading.mistakes)
    if wrong and predecessor is None:  # where there is one, it stays
        broken = reading
        reading = await aside(lambda: last_good.instead(broken, root), "read the last good configuration")
    configuration = reading.whole()
    log = logs.configure(configuration.supervisor.log_level, configuration.supervisor.log_format)
    if wrong:
        LOG.error("the configuration cannot be used, and the one that was in force last is: %s", wrong)
    parts = Parts(config_path, root, reading, first, predecessor, wrong, take_over=take_over)
    log.mask = parts.volumes.known.hide
    parts.runner.reserve.keep()
    return await Daemon(parts).run()


class Daemon:
    """The life of all parts.

    Args:
        parts: of which nothing was started yet.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._configuration, self._paths = parts, parts.configuration, parts.paths
        self._predecessor, self._stop = parts.predecessor, parts.stop
        handlers = {"cni": parts.cni.handle, "flex": parts.flex.handle, "control": self._control}
        self._server = ExecServer(self._paths.exec_socket, handlers, in_threads={"cni"})
        self._handover = parts.handover(self._server)
        self._server.succession = self._handover.yield_to
        self._reprobing = Lane(f"the folder of volume drivers {self._paths.flexvolume}")

    # --- start and stop -----------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Start, serve, stop; return the exit status."""
        parts = self._parts
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop.set)
        end_by_alarm(LONGEST_END)
        loop.add_signal_handler(signal.SIGHUP, parts.reloader.ask)
        inherited = await self._take_over(self._predecessor) if self._predecessor is not None else None
        await parts.folders.make(parts.spool.prepare)
        parts.disk.watch()
        async with pollers.hold():
            return await self._listen(inherited)

    async def _listen(self, inherited: socket.socket | None) -> int:
        """Listen, serve until the end, and return the exit status."""
        # Listening comes first: it refuses to run next to another daemon, and early callers wait in the backlog.
        if inherited is None:
            await self._server.start()
            await self._recall()
        else:
            self._server.adopt(inherited)
        async with self._endpoints(), asyncio.TaskGroup() as group:
            listener = await self._serve(group)
        LOG.info("stopped")
        return await self._handover.leave(listener) if listener is not None else 0

    async def _take_over(self, predecessor: Predecessor) -> socket.socket:
        """Get ready beside the daemon that serves, and wait until the node is this one's own."""
        parts = self._parts
        users = parts.hosts.users.privileges
        trial = Lifecycle(Registry(), Runner(), parts.hosts.make, privileges=users, cgroups=None)
        await trial.load_all({name: one for name, one in self._configuration.plugins.items() if one.enabled})
        refused = {name: slot.reason for name, slot in trial.registry.slots.items() if slot.state == "refused"}
        # One that kubelet knows by then would take the devices of the other with it when it is refused.
        await predecessor.loaded(refused)
        await self._recall()
        try:
            await asyncio.gather(
                parts.resources.registered(REGISTRATION_PATIENCE), parts.claims.announce(REGISTRATION_PATIENCE)
            )
            return await predecessor.succeed(parts.hosts.sockets.adopt)
        except BaseException:
            await parts.claims.stop()  # kubelet would ask here for as long as there is a socket
            raise

    async def _recall(self) -> None:
        """Offer kubelet at once what an earlier daemon offered; its requests wait for the plugins."""
        parts = self._parts
        parts.resources.take_over(parts.runner, parts.device_routes, parts.claims.withheld)
        await parts.resources.recall(self._configuration.serving("device-plugin"))

    async def _come_after(self, predecessor: Predecessor) -> None:
        """Tell the daemon before this one that it may go, and do what depends on its end."""
        await self._parts.resources.registered(REGISTRATION_PATIENCE)
        predecessor.say_serving(self._parts.resources.sockets())
        if not await predecessor.end(self._handover.kept) and notify.supervised():
            LOG.error(
                "the daemon before was killed while it handed over: systemd starts another one, which needs the node"
            )
            self._stop.set()
            return
        notify.ready()  # the predecessor has told systemd who is the main process now
        self._parts.resources.expect_disconnection()
        await asyncio.sleep(SAMPLE_INTERVAL)  # the kernel closes what a process had one by one
        await self._parts.resources.sweep()

    def _endpoints(self) -> AbstractAsyncContextManager[object]:
        address = self._configuration.supervisor.listen
        if not address:
            return nullcontext()
        overview = self._parts.overview
        return Endpoints(address, self._parts.metrics.registry, lambda: overview.readiness, overview.liveness)

    async def _serve(self, group: asyncio.TaskGroup) -> socket.socket | None:
        """Serve until the end; return the listening socket if a successor is to have it."""
        parts = self._parts
        await parts.claims.recover()
        started = group.create_task(parts.last_good.start(self._configuration.plugins), name="start plugins")
        await until(started, self._stop, START_PATIENCE)
        replay, installation = await self._recover(group)
        tasks = self._background(self._server, [started, installation]).items()
        background = [started, replay, installation, *(group.create_task(task, name=name) for name, task in tasks)]
        await parts.csi.keep()
        await parts.claims.keep()
        await self._sample()
        tuning.settle()
        if self._predecessor is not None:
            background.append(group.create_task(self._come_after(self._predecessor), name="come after"))
        else:
            notify.ready()
        LOG.info("serving %d plugins at %s", len(parts.registry.plugins), self._paths.exec_socket)
        await self._stop.wait()
        decided = self._handover.decided
        if not decided:
            notify.stopping()
        # The socket answers until the end: callers are told to try again.
        await parts.claims.stop()
        await parts.lifecycle.stop_all()
        await parts.csi.end()
        listener = await self._server.release(LAST_ANSWERS) if decided else None
        await self._server.stop(LAST_ANSWERS)  # nothing is left to stop of a socket that was given up
        for task in background:
            task.cancel()
        return listener

    def _background(
        self, server: ExecServer, first: "list[asyncio.Task[Any]]"
    ) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return what runs until the end, by name; configurations are read again once the `first` tasks have ended."""
        parts = self._parts
        return {
            "csi": every(csi.INTERVAL, parts.csi.keep),
            "claims": every(csi.INTERVAL, parts.claims.keep),
            "slices": parts.claims.run(),
            "CSINode": parts.csi.compare(self._configuration),
            "provisioner": parts.provisioner.run(),
            "extender": parts.extender.run(),
            "networks": parts.networks.run(),
            "cluster": parts.publishing.run(),
            "watchdog": notify.keep_alive(parts.overview.calls.trouble),
            "call itself": every(own_calls.INTERVAL, parts.overview.calls.ask),
            "exec socket": server.serve(),
            "keep the exec socket": server.keep_listening(),
            "keep what plugins have": every(SAMPLE_INTERVAL, parts.hosts.keep),
            "spool": parts.cni.run_spool(),
            "orphans": parts.cni.orphans.run(),
            "reconcile with libcni": parts.reconciliation.run(),
            "podresources": parts.podresources.run(),
            "sweep cgroups": parts.supervision.sweep(),
            "bound the memory": parts.supervision.bound(self._configuration.supervisor.memory, self._stop.set),
            "start failed plugins": every(RETRY_INTERVAL, parts.supervision.retry_failed),
            "end hanging processes": every(RETRY_INTERVAL, parts.supervision.end_hanging),
            "measure processes": every(METRICS_INTERVAL, parts.overview.measure),
            "sample": every(SAMPLE_INTERVAL, self._sample),
            "keep the entrypoints": every(keeper.INTERVAL, parts.keeper.look),
            "health": every(HEALTH_INTERVAL, parts.supervision.check_health),
            "health that plugins want": every(
                HEALTH_PAUSE, lambda: parts.supervision.check_wanted(self._sample, parts.reports.measure)
            ),
            "metrics": every(METRICS_INTERVAL, parts.reports.measure),
            "configuration": self._reload(first),
            "labels of the node": parts.labels.run(),
            "watch the configuration": watch(parts.config_path, parts.reloader.reading.folder, parts.reloader.notice),
        }

    async def _reload(self, first: "list[asyncio.Task[Any]]") -> None:
        await asyncio.wait(first)
        await self._parts.reloader.run()

    async def _recover(self, group: asyncio.TaskGroup) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        """Finish what a killed predecessor began, before anybody can ask for more.

        Returns:
            The replay of DELs and the installation, which may still be under way.
        """
        parts = self._parts
        await parts.volumes.recover(parts.registry)
        # A DEL that hangs must not hold up the others: an ADD settles its own pending DELs in any case.
        replay = group.create_task(parts.spool.replay(parts.cni.replay), name="first replay")
        await until(replay, self._stop, START_PATIENCE)
        installing = group.create_task(parts.keeper.install(), name="first installation")
        await until(installing, self._stop, START_PATIENCE)  # a compiler may hang
        drivers = [route.claim.name for route in parts.registry.routes("volume")]
        try:
            await self._reprobing.run(lambda: reprobe(self._paths.flexvolume, drivers))
        except TryAgain as error:
            LOG.warning("kubelet probes the volume drivers later: %s", error)
        return replay, installing

    # --- what is told ---------------------------------------------------------------------------------------------

    async def _control(self, frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        parts = self._parts
        close_all(namespaces)
        try:
            match frame.argv:
                case ("status",):
                    answer = await parts.overview.whole()
                case ("inspect", name):
                    answer = await parts.reports.inspect(name)
                case ("reload", name):
                    await parts.supervision.renew(name)
                    answer = await parts.overview.whole()
                case ("volume-id", claim, options):
                    answer = await parts.csi.identify(claim, options)
                case ("replace",):
                    answer = await self._handover.replace()
                case ("reconcile", *how) if how in ([], ["dry-run"]):
                    answer = await parts.reconciliation.report(dry_run=bool(how))
                case _:
                    known = (
                        "status, inspect PLUGIN, reload PLUGIN, replace, reconcile [dry-run], volume-id CLAIM OPTIONS"
                    )
                    raise InvalidRequest(f"no known request in {len(frame.argv)} arguments; known: {known}")
        except PluginError as error:
            return Reply(1, json.dumps({"error": clip(str(error))}).encode())
        return Reply(0, json.dumps(answer).encode())

    async def _sample(self) -> None:
        self._parts.metrics.sample(self._parts.overview.sample())
        await self._parts.notes.keep(self._parts.reloader.reading, in_force=not self._parts.reloader.error)
        await self._parts.last_good.keep()
