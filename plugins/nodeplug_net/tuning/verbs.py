"""The verbs of tuning.

Owns: the order of the steps: settings of the namespace, the backup, settings of the interface; and their way back.
Refuses: hooks, and interfaces of its own: what it tunes, a plugin before in the list made.

A daemon that is killed within an ADD leaves the backup, from which DEL restores the interface. Settings of the
namespace end with it, as with the reference.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniInterface,
    CniResult,
    CniStatus,
    InvalidRequest,
    Netns,
    NotReady,
    PluginError,
)
from nodeplug_net.attachment import Attachment
from nodeplug_net.level.containers import Containers
from nodeplug_net.netlink.links import Links, links_in
from nodeplug_net.tuning import sysctls
from nodeplug_net.tuning.backups import Backup, BackupFile, Identity, forget_others, is_usable
from nodeplug_net.tuning.config import folder_of, parse_tuning
from nodeplug_net.tuning.polled import Polled
from nodeplug_net.tuning.settings import Settings, Tuned, change, differences, find, look, restore
from nodeplug_net.undo import Undo


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the verbs share. Any thread may use it.

    Attributes:
        allowlist: which settings of the namespace are allowed.
        data_dir: where backups are unless a network says otherwise.
        containers: those that were tuned.
        polled: what their settings are to be.
    """

    allowlist: Path
    data_dir: Path
    log: logging.LoggerAdapter[logging.Logger]
    containers: Containers = field(default_factory=Containers)
    polled: Polled = field(default_factory=Polled)

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves everything as it was.

        Raises:
            PluginError: the configuration is wrong, there is no such interface, or the kernel refuses.
            OSError: the namespace cannot be entered.
        """
        config = parse_tuning(request)
        sysctls.check_allowed(config.sysctls, self.allowlist)
        before = request.prev_result
        if before is None:
            raise InvalidRequest(
                "Required prevResult missing", details="put it after the plugin that makes the interface"
            )
        files, folder = config.files(request.ifname), folder_of(request, self.data_dir)
        with Undo(self.log) as undo:
            with request.netns.entered():
                for path, value in files.items():
                    former = sysctls.read(path)
                    if former is not None:
                        undo.push(f"restore {path}", _in(request.netns, partial(sysctls.write, path, former)))
                    sysctls.write(path, value)
            if config.settings:
                with links_in(request.netns) as links:
                    self._change(request, folder, links, config.settings, undo)
        result = _told(before, request.ifname, config.settings)
        self.containers.keep(request, result)
        return result

    def _change(self, request: CniAdd, folder: Path, links: Links, wanted: Settings, undo: Undo) -> None:
        link = find(links, request.ifname)
        file, former = _backup(request, folder)
        now, interface = link.settings.where_said(wanted), _identity(request.netns, link)
        # A repeated ADD finds what the first one set: what it was before is in the file.
        again = former is not None and former.interface in {None, interface}
        known = former.settings.before(now) if former is not None and again else now
        file.write(Backup(known, request.network, interface))
        undo.push(f"restore interface {link.name}", lambda: _withdraw(request, now, file, former))
        change(links, link, wanted)

    def delete(self, request: CniDel) -> None:
        """Serve DEL: restore the interface, if it is still there, and forget what it was.

        What cannot be restored is said in the log and no more, and its backup stays: a DEL that fails keeps its pod.

        Raises:
            PluginError: the backup cannot be read or removed.
            OSError: the namespace cannot be entered.
        """
        self.containers.forget(Attachment.of(request).label)
        try:
            folder = folder_of(request, self.data_dir)
        except InvalidRequest as error:  # no ADD has succeeded with it
            self.log.warning("%s; nothing is restored", error)
            return
        file, backup = _backup(request, folder)
        if backup is not None and request.netns is not None:
            with links_in(request.netns) as links:
                link = look(links, request.ifname)
                own = link is not None and backup.interface in {None, _identity(request.netns, link)}
                failures = restore(links, link, backup.settings) if link is not None and own else []
            if failures:
                self.log.warning("%s; the backup %s stays", "; ".join(failures), file.path)
                return
        file.remove()

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the namespace cannot be entered.
        """
        if found := _differences(request):
            raise PluginError("; ".join(found), details="DEL and ADD the attachment")

    def differences(self, request: CniCheck) -> list[str]:
        """Name what is not as ADD left it.

        Raises:
            PluginError: there is nothing to compare, or the configuration is wrong.
            OSError: the namespace cannot be entered.
        """
        return _differences(request)

    def changed(self) -> bool:
        """Whether the settings of another container differ now than at the last look, which then is at those.

        The kernel tells nobody that a setting of a namespace was written. The calling thread is in the daemon's own.
        """
        overdue = self.containers.asked()
        return self.polled.news(self.containers) | (overdue is not None and overdue())

    def collect(self, request: CniGc) -> None:
        """Serve GC: forget what interfaces were whose attachments are not valid.

        Raises:
            PluginError: the folder of backups cannot be written.
        """
        if request.valid is None:
            return
        self.containers.forget_invalid(request)
        folder = folder_of(request, self.data_dir)
        valid = (BackupFile.of(folder, one.container_id, one.ifname) for one in request.valid)
        forget_others(folder, request.network, frozenset(file.path.name for file in valid))

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: a setting is not allowed, or no backup can be written.
            InvalidRequest: a key is wrong.
        """
        config = parse_tuning(request)
        config.files("eth0")
        folder = folder_of(request, self.data_dir)
        try:
            sysctls.check_allowed(config.sysctls, self.allowlist)
        except PluginError as error:
            raise NotReady(f"network {request.network}: {error.message}", details=error.details) from error
        if not is_usable(folder):
            raise NotReady(f"network {request.network}: the folder {folder} for backups cannot be made or written")


def _differences(request: CniAdd | CniCheck) -> list[str]:
    """Name what is not as the configuration asks for."""
    config = parse_tuning(request)
    with request.netns.entered():
        found = list(sysctls.differences(config.files(request.ifname)))
    with links_in(request.netns) as links:
        link = look(links, request.ifname)
    if link is None:
        return [*found, f"Cannot find container link {request.ifname}"]
    return [*found, *differences(link.name, config.settings, link.settings)]


def _withdraw(request: CniAdd, settings: Settings, file: BackupFile, former: Backup | None) -> None:
    """Return to what was before an ADD; if the interface cannot, its backup stays for DEL."""
    with links_in(request.netns) as links:
        if failures := restore(links, find(links, request.ifname), settings):
            raise PluginError("; ".join(failures))
    if former is None:
        file.remove()
    else:
        file.write(former)


def _in(netns: Netns, work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with netns.entered():
            work()

    return run


def _backup(request: CniAdd | CniDel, folder: Path) -> tuple[BackupFile, Backup | None]:
    file = BackupFile.of(folder, request.container_id, request.ifname)
    return file, file.read()


def _identity(netns: Netns, link: Tuned) -> Identity:
    return *netns.identity, link.index


def _told(before: CniResult, ifname: str, settings: Settings) -> CniResult:
    """Return the result of the plugins before with what has changed of the container's interface."""

    def changed(one: CniInterface) -> CniInterface:
        if one.name != ifname or not one.sandbox:
            return one
        mtu = settings.mtu if one.mtu and settings.mtu else one.mtu
        return replace(one, mac=settings.mac or one.mac, mtu=mtu)

    return replace(before, interfaces=tuple(map(changed, before.interfaces)))
