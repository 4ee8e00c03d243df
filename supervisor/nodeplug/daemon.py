"""The composition root: one event loop, one TaskGroup of named tasks.

Owns: which object knows which, the order of start and stop, signals, and the requests of the control socket.
Refuses: protocols (the services know those), plugin code (the runner's), and any cleanup at the end that the next start
could not do: `stop()` may never run; start is recovery.
"""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from nodeplug import first_lists
from nodeplug.cluster.section import publishing_of
from nodeplug.cni.admission import Admission
from nodeplug.cni.attachments import Attachments
from nodeplug.cni.delegate import Delegation
from nodeplug.cni.service import CniService
from nodeplug.cni.spool import Spool
from nodeplug.config import Reading, last_good, node_name, read
from nodeplug.config.watch import watch
from nodeplug.contract.errors import InvalidRequest, PluginError, TryAgain, clip
from nodeplug.contract.journal import read_boot_id
from nodeplug.contract.netns import Netns
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.csi import drivers as csi
from nodeplug.device.checkpoint import CHECKPOINT
from nodeplug.device.kubelet import KubeletFolders
from nodeplug.device.last_known import LastKnown
from nodeplug.device.podresources import PodResources
from nodeplug.device.resources import Resources
from nodeplug.exec.frame import Frame, Reply
from nodeplug.exec.server import ExecServer
from nodeplug.extender.section import listener_of
from nodeplug.flex.service import FlexService
from nodeplug.handover import Handover
from nodeplug.hosting.call import Call
from nodeplug.hosting.last_good import LastGood
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.own_folders import OwnFolders
from nodeplug.hosting.plugin_users import PluginUsers
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.reload import Reloader
from nodeplug.hosting.runner import Runner, close_all
from nodeplug.hosting.supervision import Supervision
from nodeplug.hosts import EXTENDER, PROVISIONER, VOLUMES, Hosts
from nodeplug.install import keeper
from nodeplug.install.drivers import reprobe
from nodeplug.networks.section import networks_of
from nodeplug.node_labels import NodeLabels
from nodeplug.observe import logs
from nodeplug.observe.endpoints import Endpoints
from nodeplug.observe.metrics import Metrics, outcome_of
from nodeplug.observe.overview import Overview
from nodeplug.observe.plugin_metrics import PluginMetrics
from nodeplug.observe.recorder import Recorder
from nodeplug.observe.reports import Reports
from nodeplug.observe.state_disk import StateDisk
from nodeplug.process import notify, tuning
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane
from nodeplug.process.succession import Predecessor
from nodeplug.process.waiting import every, until
from nodeplug.provisioner.section import provisioner_of
from nodeplug.volumes.service import Volumes
from nodeplug.worker.cgroups import Cgroups

LOG: Final = logging.getLogger(__name__)
START_PATIENCE: Final = 5.0
"""Seconds that plugins get to start, spooled DELs to be replayed, and entrypoints to be compiled, before callers are
served without them."""
LAST_ANSWERS: Final = 1.0
"""Seconds for answers that are on their way when every plugin has stopped."""
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
    logs.configure(configuration.supervisor.log_level, configuration.supervisor.log_format)
    if wrong:
        LOG.error("the configuration cannot be used, and the one that was in force last is: %s", wrong)
    tuning.allow_descriptors()
    return await Daemon(config_path, root, reading, first, predecessor, wrong, take_over=take_over).run()


class Daemon:
    """Everything, composed."""

    def __init__(
        self,
        config_path: Path,
        root: Path | None,
        reading: Reading,
        first: Resources | None = None,
        predecessor: Predecessor | None = None,
        wrong: str = "",
        *,
        take_over: bool = False,
    ) -> None:
        self._config_path, self._predecessor = config_path, predecessor
        self._registry = Registry()
        self._configuration = reading.configuration
        supervisor, device_routes = self._configuration.supervisor, partial(self._registry.routes, "device")
        self._paths = supervisor.paths
        self._boot_id, self._disk = read_boot_id(), StateDisk(self._paths.state)
        self._folders = OwnFolders(self._paths)
        self._reprobing = Lane(f"the folder of volume drivers {self._paths.flexvolume}")
        self._runner = Runner(self._finished)
        self._resources = first or Resources(
            self._runner,
            KubeletFolders(
                self._paths.device_plugins, self._paths.plugins_registry, succeeding=predecessor is not None
            ),
            device_routes,
            supervisor.device_registration,
            supervisor.device_poll,
            LastKnown(first_lists.folder(self._paths.run), self._boot_id),
        )
        self._notes = first_lists.Notes(reading, root, self._boot_id)
        self._podresources = PodResources(
            self._paths.podresources_socket,
            self._paths.state / "holders.json",
            device_routes,
            self._runner,
            supervisor.podresources_poll,
            checkpoint=self._paths.device_plugins / CHECKPOINT,
        )
        node = node_name(supervisor)
        self._networks = networks_of(self._configuration, self._registry, node, self._paths)
        self._hosts = Hosts(
            node=node,
            boot_id=self._boot_id,
            paths=self._paths,
            disk=self._disk,
            folders=self._folders,
            registry=self._registry,
            resources=self._resources,
            podresources=self._podresources,
            delegation=Delegation(self._registry, visiting=self._runner.visiting),
            cgroups=Cgroups(supervisor.cgroups, supervisor.program_cgroup),
            users=PluginUsers(self._paths, supervisor.plugin_user),
            networks=self._networks.door_of,
            scheduling=self._scheduling_of,
        )
        self._lifecycle = Lifecycle(
            self._registry,
            self._runner,
            self._hosts.make,
            self._resources,
            reading.places.tell,
            self._folders.give,
            self._hosts.users.privileges,
            cgroups=self._hosts.cgroups,
        )
        self._supervision = Supervision(self._lifecycle)
        self._attachments = Attachments(self._paths.attachments)
        self._spool = Spool(self._paths.spool, boot_id=self._boot_id)
        self._cni = CniService(
            self._registry,
            self._runner,
            self._attachments,
            self._spool,
            Admission(supervisor.cni_concurrency, supervisor.cni_waiting),
        )
        self._reconciliation = self._cni.reconciliation(
            self._paths.cni_caches, self._paths.cni_bin, supervisor.cni_reconcile
        )
        self._volumes = Volumes(self._runner, self._hosts.journal(VOLUMES), self._paths.run / "staging")
        self._flex = FlexService(self._registry, self._runner, self._volumes)
        self._csi = csi.CsiDrivers(
            self._registry,
            self._runner,
            self._volumes,
            self._paths.plugins_registry,
            self._paths.state / "csi-drivers.json",
            node,
            supervisor.csi,
        )
        self._provisioner = provisioner_of(self._configuration, self._csi, node, self._hosts.journal(PROVISIONER))
        self._extender = listener_of(
            self._configuration, self._registry, self._runner, self._hosts.sockets.of(EXTENDER)
        )
        self._publishing = publishing_of(
            self._configuration, self._registry, self._runner, node, lambda: self._overview.readiness[1]
        )
        self._metrics, self._recorder = Metrics(version("nodeplug")), Recorder()
        exported = PluginMetrics(self._metrics.registry)
        self._reports = Reports(self._registry.slots, self._runner, exported.take)
        self._keeper = keeper.Keeper(self._registry, supervisor, reading.folder)
        self._reloader = Reloader(
            reading,
            read=lambda before: read(config_path, root, before),
            lifecycle=self._lifecycle,
            install=self._keeper.install,
            count=self._metrics.reload,
            error=wrong,
        )
        self._last_good = LastGood(self._paths.state, self._lifecycle, self._reloader)
        self._labels = NodeLabels(lambda: self._reloader.reading.configuration, self._reloader.notice)
        self._overview = Overview(
            node=node,
            labels=self._labels,
            paths=self._paths,
            registry=self._registry,
            resources=self._resources,
            podresources=self._podresources,
            csi=self._csi,
            provisioner=self._provisioner,
            extender=self._extender,
            networks=self._networks,
            publishing=self._publishing,
            attachments=self._attachments,
            ledger=self._volumes.ledger,
            spool=self._spool,
            recorder=self._recorder,
            reloader=self._reloader,
            keeper=self._keeper,
            disk=self._disk,
        )
        self._stop = asyncio.Event()
        handlers = {"cni": self._cni.handle, "flex": self._flex.handle, "control": self._control}
        self._server = ExecServer(self._paths.exec_socket, handlers)
        command = ["serve", "--config", str(config_path), *(["--root", str(root)] if root is not None else [])]
        command += ["--take-over"] * take_over
        self._handover = Handover(
            command,
            self._server,
            self._registry,
            self._resources,
            self._volumes,
            self._extender,
            self._hosts.sockets,
            self._stop,
            stands_by=take_over,
        )
        self._server.succession = self._handover.yield_to

    # --- start and stop -----------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Start, serve, stop; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reloader.ask)
        inherited = await self._take_over(self._predecessor) if self._predecessor is not None else None
        await self._folders.make(self._spool.prepare)
        self._disk.watch()
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
        users = self._hosts.users.privileges
        trial = Lifecycle(Registry(), Runner(), self._hosts.make, privileges=users, cgroups=None)
        await trial.load_all({name: one for name, one in self._configuration.plugins.items() if one.enabled})
        refused = {name: slot.reason for name, slot in trial.registry.slots.items() if slot.state == "refused"}
        # One that kubelet knows by then would take the devices of the other with it when it is refused.
        await predecessor.loaded(refused)
        await self._recall()
        await self._resources.registered(REGISTRATION_PATIENCE)
        return await predecessor.succeed(self._hosts.sockets.adopt)

    async def _recall(self) -> None:
        """Offer kubelet at once what an earlier daemon offered; its requests wait for the plugins."""
        self._resources.take_over(self._runner, partial(self._registry.routes, "device"))
        await self._resources.recall({name for name, one in self._configuration.plugins.items() if one.enabled})

    async def _come_after(self, predecessor: Predecessor) -> None:
        """Tell the daemon before this one that it may go, and do what depends on its end."""
        await self._resources.registered(REGISTRATION_PATIENCE)
        predecessor.say_serving(self._resources.sockets())
        if not await predecessor.end(self._handover.kept) and notify.supervised():
            LOG.error(
                "the daemon before was killed while it handed over: systemd starts another one, which needs the node"
            )
            self._stop.set()
            return
        notify.ready()  # the predecessor has told systemd who is the main process now
        self._resources.expect_disconnection()
        await asyncio.sleep(SAMPLE_INTERVAL)  # the kernel closes what a process had one by one
        await self._resources.sweep()

    def _endpoints(self) -> AbstractAsyncContextManager[object]:
        address = self._configuration.supervisor.listen
        if not address:
            return nullcontext()
        return Endpoints(address, self._metrics.registry, lambda: self._overview.readiness, self._overview.liveness)

    async def _serve(self, group: asyncio.TaskGroup) -> socket.socket | None:
        """Serve until the end; return the listening socket if a successor is to have it."""
        started = group.create_task(self._last_good.start(self._configuration.plugins), name="start plugins")
        await until(started, self._stop, START_PATIENCE)
        replay, installation = await self._recover(group)
        tasks = self._background(self._server, [started, installation]).items()
        background = [started, replay, installation, *(group.create_task(task, name=name) for name, task in tasks)]
        await self._csi.keep()
        await self._sample()
        tuning.settle()
        if self._predecessor is not None:
            background.append(group.create_task(self._come_after(self._predecessor), name="come after"))
        else:
            notify.ready()
        LOG.info("serving %d plugins at %s", len(self._registry.plugins), self._paths.exec_socket)
        await self._stop.wait()
        decided = self._handover.decided
        if not decided:
            notify.stopping()
        # The socket answers until the end: callers are told to try again.
        await self._lifecycle.stop_all()
        await self._csi.end()
        listener = await self._server.release(LAST_ANSWERS) if decided else None
        await self._server.stop(LAST_ANSWERS)  # nothing is left to stop of a socket that was given up
        for task in background:
            task.cancel()
        return listener

    def _background(
        self, server: ExecServer, first: "list[asyncio.Task[Any]]"
    ) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return what runs until the end, by name; configurations are read again once the `first` tasks have ended."""
        return {
            "csi": every(csi.INTERVAL, self._csi.keep),
            "CSINode": self._csi.compare(self._configuration),
            "provisioner": self._provisioner.run(),
            "extender": self._extender.run(),
            "networks": self._networks.run(),
            "cluster": self._publishing.run(),
            "watchdog": notify.keep_alive(),
            "exec socket": server.serve(),
            "keep the exec socket": server.keep_listening(),
            "keep what plugins have": every(SAMPLE_INTERVAL, self._hosts.keep),
            "spool": self._cni.run_spool(),
            "orphans": self._cni.orphans.run(),
            "reconcile with libcni": self._reconciliation.run(),
            "podresources": self._podresources.run(),
            "sweep cgroups": self._supervision.sweep(),
            "bound the memory": self._supervision.bound(self._configuration.supervisor.memory, self._stop.set),
            "start failed plugins": every(RETRY_INTERVAL, self._supervision.retry_failed),
            "end hanging processes": every(RETRY_INTERVAL, self._supervision.end_hanging),
            "measure processes": every(METRICS_INTERVAL, self._overview.measure),
            "sample": every(SAMPLE_INTERVAL, self._sample),
            "keep the entrypoints": every(keeper.INTERVAL, self._keeper.look),
            "health": every(HEALTH_INTERVAL, self._supervision.check_health),
            "health that plugins want": every(
                HEALTH_PAUSE, lambda: self._supervision.check_wanted(self._sample, self._reports.measure)
            ),
            "metrics": every(METRICS_INTERVAL, self._reports.measure),
            "configuration": self._reload(first),
            "labels of the node": self._labels.run(),
            "watch the configuration": watch(self._config_path, self._reloader.reading.folder, self._reloader.notice),
        }

    async def _reload(self, first: "list[asyncio.Task[Any]]") -> None:
        await asyncio.wait(first)
        await self._reloader.run()

    async def _recover(self, group: asyncio.TaskGroup) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        """Finish what a killed predecessor began, before anybody can ask for more.

        Returns:
            The replay of DELs and the installation, which may still be under way.
        """
        await self._volumes.recover(self._registry)
        # A DEL that hangs must not hold up the others: an ADD settles its own pending DELs in any case.
        replay = group.create_task(self._spool.replay(self._cni.replay), name="first replay")
        await until(replay, self._stop, START_PATIENCE)
        installing = group.create_task(self._keeper.install(), name="first installation")
        await until(installing, self._stop, START_PATIENCE)  # a compiler may hang
        drivers = [route.claim.name for route in self._registry.routes("volume")]
        try:
            await self._reprobing.run(lambda: reprobe(self._paths.flexvolume, drivers))
        except TryAgain as error:
            LOG.warning("kubelet probes the volume drivers later: %s", error)
        return replay, installing

    # --- what is told ---------------------------------------------------------------------------------------------

    def _finished(self, call: Call, error: PluginError | None) -> None:
        outcome = outcome_of(error)
        self._metrics.finished(call, outcome)
        self._recorder.add(call, outcome, error.message if error is not None else "")
        self._publishing.finished(call, error)
        if call.verb == "Allocate" and error is None:
            self._podresources.soon()

    def _scheduling_of(self, section: str) -> ClusterScheduling:
        """Return what a section may ask of the cluster; the extenders, which keep their socket, are made later."""
        return self._extender.door_of(section)

    async def _control(self, frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        close_all(namespaces)
        try:
            match frame.argv:
                case ("status",):
                    answer = await self._overview.whole()
                case ("inspect", name):
                    answer = await self._reports.inspect(name)
                case ("reload", name):
                    await self._supervision.renew(name)
                    answer = await self._overview.whole()
                case ("volume-id", claim, options):
                    answer = await self._csi.identify(claim, options)
                case ("replace",):
                    answer = await self._handover.replace()
                case ("reconcile", *how) if how in ([], ["dry-run"]):
                    answer = await self._reconciliation.report(dry_run=bool(how))
                case _:
                    known = (
                        "status, inspect PLUGIN, reload PLUGIN, replace, reconcile [dry-run], volume-id CLAIM OPTIONS"
                    )
                    raise InvalidRequest(f"no known request in {len(frame.argv)} arguments; known: {known}")
        except PluginError as error:
            return Reply(1, json.dumps({"error": clip(str(error))}).encode())
        return Reply(0, json.dumps(answer).encode())

    async def _sample(self) -> None:
        self._metrics.sample(self._overview.sample())
        await self._notes.keep(self._reloader.reading, in_force=not self._reloader.error)
        await self._last_good.keep()
