"""The driver under test, called as kubelet calls it: over FlexVolume, and the same volume over CSI.

Owns: one volume of one driver: mount and unmount for a pod, single calls, and their failures as broken rules.
Refuses: to judge, and CSI for drivers that attach: there is no controller here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.values import Pod, Secrets
from nodeplug.flex import commands as cmd
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.csi_caller import CsiCaller, CsiFailure, CsiTimeouts, CsiVolume
from nodeplug.testing.flex_caller import FlexCaller, FlexFailure, FlexNotSupported, FlexVolume
from nodeplug.testing.served_volumes import csi_driver, volume_id_at

NAME: Final = "conformance"
PODS: Final = tuple(Pod(name=f"pod-{number}", namespace="default", uid=f"uid-{number}") for number in (1, 2))


class Volume:
    """The volume of one examination, over FlexVolume.

    Args:
        exam: of which plugin.
        driver: the claim.
    """

    def __init__(self, exam: Examination, driver: str) -> None:
        exam.require_passed("mount-succeeds")
        self.exam = exam
        self.caller = FlexCaller(
            exam.node.paths.flexvolume, exam.rig.folder / "kubelet", driver, timeout=max(exam.patience, 30.0)
        )
        self.asked = FlexVolume(NAME, dict(exam.subject.options), dict(exam.subject.secrets))

    def ask(self, what: str, work: Callable[[], Any]) -> Any:
        """Let kubelet do something.

        Raises:
            Broken: the driver failed.
        """
        try:
            return self.exam.on_host(work)
        except FlexFailure as error:
            raise Broken(f"{what} failed: {error}") from None

    def mount(
        self,
        pod: Pod = PODS[0],
        *,
        read_only: bool = False,
        options: Mapping[str, str] | None = None,
        secrets: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Mount for a pod as kubelet does, and return the target.

        Raises:
            Broken: it failed.
        """
        asked = replace(
            self.asked,
            read_only=read_only,
            options=self.asked.options if options is None else options,
            secrets=self.asked.secrets if secrets is None else secrets,
        )
        path: Path = self.ask("mount", lambda: self.caller.mount(pod, asked))
        return path

    def mount_again(self, target: Path) -> None:
        """Mount for the first pod once more, as a kubelet that does not see the mount; Broken if it fails."""
        self.call("a second mount", cmd.Mount(str(target), self._for_pod()))

    def unmount_twice(self, target: Path) -> None:
        """Unmount for the first pod two times, as after a lost answer; Broken if one fails."""
        for what in ("unmount", "a second unmount"):
            self.call(what, cmd.Unmount(str(target)))

    def expand(self, target: Path, size: int, what: str) -> int:
        """Grow the volume of the first pod; return the size that the driver answers; Broken if it fails."""
        answer = self.call(what, cmd.ExpandVolume(self.options, str(target), size, size // 2))
        return int(answer.get("volumeNewSize", 0))

    def _for_pod(self) -> cmd.VolumeOptions:
        return replace(self.options, pod=PODS[0], secrets=Secrets(self.asked.secrets))

    def unmount(self, pod: Pod = PODS[0]) -> None:
        """Unmount as kubelet does.

        Raises:
            Broken: it failed.
        """
        self.ask("unmount", lambda: self.caller.unmount(pod, NAME))

    def release(self) -> None:
        """Do what kubelet does after the last pod, for drivers with attach.

        Raises:
            Broken: it failed.
        """
        if self.caller.capabilities["attach"]:
            self.ask("detach", lambda: self.caller.detach(NAME))

    def call(self, what: str, command: cmd.Command) -> dict[str, Any]:
        """Execute the driver once.

        Raises:
            Broken: it failed, or does not do this.
        """
        try:
            answer: dict[str, Any] = self.ask(what, lambda: self.caller.call(command))
        except FlexNotSupported as error:
            raise Broken(f"{what} is not supported: {error}") from None
        return answer

    @property
    def options(self) -> cmd.VolumeOptions:
        """The options as kubelet sends them with every verb but mount."""
        return cmd.VolumeOptions(volume_name=NAME, own=dict(self.asked.options))


class VolumeOverCsi(Volume):
    """The same volume over CSI: inline if the claim allows it, otherwise a PersistentVolume that a Flex pod has made.

    Args:
        exam: of which plugin.
        driver: the claim.
        handle: of a PersistentVolume that nobody has made.

    Raises:
        NotApplicable: the claim has no CSI driver, or it attaches.
    """

    def __init__(self, exam: Examination, driver: str, handle: str = "") -> None:
        super().__init__(exam, driver)
        if "volume_attach" in exam.hooks:
            raise NotApplicable("it attaches")
        self._driver = driver
        row = self._serving()
        if row is None:
            raise NotApplicable(f"{driver} has no CSI driver")
        self.inline, self.block = bool(row["inline"]), bool(row["block"])
        self.handle = "" if self.inline else handle or self._made()
        root = exam.node.paths.plugins_registry.parent
        seconds = max(exam.patience, 30.0)
        self.over_csi = CsiCaller(root, str(row["driver"]), timeouts=CsiTimeouts(call=seconds, appear=seconds))

    def _serving(self) -> Mapping[str, Any] | None:
        """Wait for the sockets of the daemon, which may just have been started; kubelet asks again instead."""
        return csi_driver(self.exam.node, self._driver, self.exam.patience)

    def _made(self) -> str:
        """Have a Flex pod make the volume, and return its id."""
        target = super().mount()
        handle = volume_id_at(self.exam.node, target)
        super().unmount()
        return handle

    def volume(self, *, read_only: bool = False) -> CsiVolume:
        """Return it as a pod names it."""
        return CsiVolume(NAME, dict(self.asked.options), self.handle, self.asked.secrets, read_only)

    def ask(self, what: str, work: Callable[[], Any]) -> Any:
        """Let kubelet do something.

        Raises:
            Broken: the driver failed.
        """
        try:
            return super().ask(what, work)
        except CsiFailure as error:
            raise Broken(f"{what} failed: {error}") from None

    def mount(
        self,
        pod: Pod = PODS[0],
        *,
        read_only: bool = False,
        options: Mapping[str, str] | None = None,
        secrets: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Publish for a pod as kubelet does, and return the target.

        Raises:
            Broken: it failed.
        """
        volume = self.volume(read_only=read_only)
        volume = replace(
            volume,
            attributes=volume.attributes if options is None else options,
            secrets=volume.secrets if secrets is None else secrets,
        )
        self._serving()
        path: Path = self.ask("publish", lambda: self.over_csi.mount(pod, volume))
        return path

    def mount_again(self, target: Path) -> None:
        """Publish for the first pod once more, as kubelet does after its restart; Broken if it fails."""
        del target
        self.ask("a second publish", lambda: self.over_csi.mount(PODS[0], self.volume()))

    def unmount(self, pod: Pod = PODS[0]) -> None:
        """Unpublish as kubelet does.

        Raises:
            Broken: it failed.
        """
        self._serving()
        self.ask("unpublish", lambda: self.over_csi.unmount(pod, NAME))

    def unmount_twice(self, target: Path) -> None:
        """Unpublish for the first pod two times, as after a lost answer; Broken if one fails."""
        del target
        for what in ("unpublish", "a second unpublish"):
            self.ask(what, lambda: self.over_csi.unpublish(PODS[0], self.volume()))

    def expand(self, target: Path, size: int, what: str) -> int:
        """Grow the volume of the first pod; return the size that the driver answers; Broken if it fails."""
        del target
        if self.inline:
            raise NotApplicable("inline volumes do not grow")
        answer: int = self.ask(what, lambda: self.over_csi.expand(PODS[0], self.volume(), size))
        return answer

    def release(self) -> None:
        """Do nothing: no driver here attaches."""


def over_both(exam: Examination, life: Callable[[Volume], None], driver: str = "") -> str:
    """Let a volume live the same life over FlexVolume, and once more over CSI if it is served there.

    Returns:
        Why there was no life over CSI; empty if there was one.

    Raises:
        Broken: it says so when it broke over CSI alone.
        NotApplicable: the life is not for this driver over FlexVolume.
    """
    driver = driver or exam.claims["volume"][0]
    life(Volume(exam, driver))
    try:
        life(VolumeOverCsi(exam, driver))
    except NotApplicable as reason:
        return f"not over CSI: {reason}"
    except Broken as error:
        raise Broken(f"over CSI: {error}") from None
    return ""
