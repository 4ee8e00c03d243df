"""What plugins tell about themselves when they are asked.

Owns: asking running plugins for `inspect` and `metrics`, and what becomes of an answer that cannot be used.
Refuses: the daemon's own status, which must answer while plugins hang.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.call import Call
from nodeplug.errors import NotFound, NotReady, NotSupported, PluginError
from nodeplug.lifecycle import PluginState
from nodeplug.registry import Loaded
from nodeplug.runner import Runner
from nodeplug.values import Metric

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Reports:
    """Asks plugins. Used from the event loop alone.

    Attributes:
        states: the plugins as they are, by section name.
        runner: calls their hooks.
        export: takes the metrics of all plugins and returns what it had to leave out.
    """

    states: Mapping[str, PluginState]
    runner: Runner
    export: Callable[[Mapping[str, Sequence[Metric]]], Sequence[str]]
    _faults: frozenset[str] = field(default_factory=frozenset)

    async def inspect(self, wanted: str) -> dict[str, Any]:
        """Ask the plugins that a name means: a section, or every section that uses the plugin of that name.

        Returns:
            What each of them tells, by section name.

        Raises:
            NotFound: no section has or uses the name.
            NotReady: one of them does not run.
            NotSupported: one of them has nothing to tell.
            PluginError: what one of them raised, or that its answer is no JSON.
        """
        states = [state for name, state in self.states.items() if wanted in {name, state.uses}]
        if not states:
            known = ", ".join(sorted(self.states)) or "none"
            raise NotFound(f"no plugin {wanted!r} is enabled; there is a [plugins.…] section for: {known}")
        return {state.name: await self._inspect(state) for state in states}

    async def _inspect(self, state: PluginState) -> Any:
        loaded = _running(state)
        if "inspect" not in loaded.hooks:
            raise NotSupported(f"plugin {state.name!r} has nothing to inspect; `nodeplug status` tells how it is")
        call = Call("inspect", f"plugin:{state.name}", key=f"inspection of {state.name}")
        answer = await self.runner.call(loaded.route, "inspect", call, {})
        try:
            return json.loads(await asyncio.to_thread(json.dumps, dict(answer), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise PluginError(f"what plugin {state.name!r} tells about itself is no JSON: {error}") from error

    async def measure(self) -> None:
        """Ask every running plugin that has metrics; one that fails keeps none, and says so once."""
        asked = {name: state for name, state in self.states.items() if _measures(state)}
        answers = await asyncio.gather(*(self._measure(state) for state in asked.values()))
        given = {name: metrics for name, (metrics, _) in zip(asked, answers, strict=True)}
        faults = frozenset([*(text for _, text in answers if text), *self.export(given)])
        for text in sorted(faults - self._faults):
            LOG.warning("not exported: %s", text)
        self._faults = faults

    async def _measure(self, state: PluginState) -> tuple[Sequence[Metric], str]:
        call = Call("metrics", f"plugin:{state.name}", key=f"metrics of {state.name}")
        try:
            return await self.runner.call(_running(state).route, "metrics", call, {}), ""
        except PluginError as error:
            return (), f"plugin {state.name}: {error.message}"


def _measures(state: PluginState) -> bool:
    return state.state == "running" and state.loaded is not None and "metrics" in state.loaded.hooks


def _running(state: PluginState) -> Loaded:
    if state.state != "running" or state.loaded is None:
        raise NotReady(f"plugin {state.name!r} is {state.state}: {state.reason or 'ask again in a moment'}")
    return state.loaded
