"""The driver under test, called as kubelet calls it.

Owns: one volume of one driver: mount and unmount for a pod, single calls, and their failures as broken rules.
Refuses: to judge.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.values import Pod
from nodeplug.flex import commands as cmd
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.verdict import Broken
from nodeplug.testing.flex_caller import FlexCaller, FlexFailure, FlexNotSupported, FlexVolume

NAME: Final = "conformance"
PODS: Final = tuple(Pod(name=f"pod-{number}", namespace="default", uid=f"uid-{number}") for number in (1, 2))


class Volume:
    """The volume of one examination.

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

    def mount(self, pod: Pod = PODS[0], volume: FlexVolume | None = None) -> Path:
        """Mount for a pod as kubelet does, and return the target.

        Raises:
            Broken: it failed.
        """
        path: Path = self.ask("mount", lambda: self.caller.mount(pod, volume or self.asked))
        return path

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
