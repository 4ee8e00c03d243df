"""One CSI driver on this node: what its services share.

Owns: the way of each call through the front, and who answers when the plugin is at rest.
Refuses: messages (the codecs), what the calls do (`volume`, `nodeplug.volumes`), and to wait for minutes: kubelet gives
a call two, a provisioner ten seconds, and both repeat it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from nodeplug.contract.errors import NotFound, PluginError, TryAgain
from nodeplug.contract.values import Pod, Secrets, VolumeClaim
from nodeplug.csi import codec
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.rpc import abort
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.volumes.callers import pod_of
from nodeplug.volumes.compose import Steps
from nodeplug.volumes.routes import at_rest, unclaimed
from nodeplug.volumes.service import Volumes

PATIENCE: Final = 5.0
"""Seconds that a call waits for an earlier one about the same volume."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Driver:
    """What the services of one driver share. Event loop only.

    Attributes:
        name: of the CSI driver.
        claim: the name of the claim, `vendor/driver`.
        node: the name of this node.
        version: of nodeplug.
        folders: `plugins/kubernetes.io/csi` below kubelet's root, where kubelet makes folders for staging.
    """

    name: str
    claim: str
    node: str
    version: str
    folders: Path
    registry: Registry
    runner: Runner
    volumes: Volumes
    _front: Front = field(init=False)

    def __post_init__(self) -> None:
        self._front = Front(self.runner)

    def route(self, undoing: str = "") -> Route:
        """Return the route to the plugin; one without callers, if nobody has the claim, or its plugin is at rest.

        At rest it must not have the hook that undoes. So the pods of a plugin that was removed can end without it.

        Raises:
            TryAgain: the plugin does not run.
            NotFound: nobody has the claim, and nothing is to be undone.
        """
        try:
            return self.registry.route("volume", self.claim)
        except NotFound:
            if not undoing:
                raise
            return unclaimed(self.registry, self.claim)
        except TryAgain:
            resting = at_rest(self.registry, self.claim, undoing)
            if resting is None:
                raise
            return resting

    @property
    def serving(self) -> Route:
        """The route to the plugin, for what needs it.

        Raises:
            TryAgain: it does not run, or nobody has the claim at present: kubelet takes NOT_FOUND for final.
        """
        try:
            return self.route()
        except NotFound as error:
            raise TryAgain(error.message) from error

    @property
    def topology(self) -> Mapping[str, str]:
        """Where the volumes of this node can be used, if they can nowhere else; otherwise empty."""
        claim = cast("VolumeClaim", self.claimed.claim)
        return {f"{self.name}/node": self.node} if claim.node_local else {}

    @property
    def claimed(self) -> Route:
        """The route to the claim, whether its plugin runs or not: kubelet asks before it unpublishes, too."""
        routes = self.registry.routes("volume")
        mine = next((one for one in routes if one.claim.name == self.claim), None)
        return mine if mine is not None else unclaimed(self.registry, self.claim)

    async def answer(
        self,
        verb: str,
        context: Any,
        work: Callable[[Steps], _T],
        *,
        target: str = "",
        secrets: Secrets | None = None,
        undoing: str = "",
        pod: Pod | None = None,
    ) -> _T:
        """Run the steps of a call; end it with the status of the error, if there is one."""
        try:
            return await self.work(verb, work, target=target, secrets=secrets, undoing=undoing, pod=pod)
        except PluginError as error:
            await abort(context, error)

    async def work(
        self,
        verb: str,
        work: Callable[[Steps], _T],
        *,
        target: str = "",
        secrets: Secrets | None = None,
        undoing: str = "",
        pod: Pod | None = None,
    ) -> _T:
        """Run the steps of a call.

        Args:
            verb: what it is called.
            work: the steps.
            target: what it is about.
            secrets: are masked in every text about the driver.
            undoing: the hook that a plugin at rest need not have.
            pod: for whom.

        Raises:
            PluginError: what the steps raised.
        """
        known = self.volumes.known
        if secrets is not None:
            known.remember(self.claim, target, codec.hidden(secrets))
        call = Call(verb, f"volume:{self.claim}", target, mask=known.mask(self.claim))
        call.pod = pod_of(pod, target) if pod is not None else None
        return await self._front.serve(call, self._run(call, work, undoing))

    async def _run(self, call: Call, work: Callable[[Steps], _T], undoing: str) -> _T:
        route = self.route(undoing)
        try:
            answer = await self.volumes.run(route, call, work, patience=PATIENCE)
        except OSError as error:
            raise PluginError(f"{type(error).__name__}: {error}") from error
        if route.callers:
            await self.volumes.undo_left(self.registry, self.claim)
        return answer


async def now(context: Any, look: Callable[[], _T]) -> _T:
    """Answer from memory, or end the call with the status of the error."""
    try:
        return look()
    except PluginError as error:
        await abort(context, error)
