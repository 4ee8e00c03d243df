"""Asking running plugins whether they are well.

Owns: the calls of `health`, and what a state says of their answers.
Refuses: consequences; a plugin that is not well goes on serving.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.hosting.call import Call
from nodeplug.hosting.plugin_state import PluginState
from nodeplug.hosting.runner import Runner

LOG: Final = logging.getLogger(__name__)


async def check(states: Iterable[PluginState], runner: Runner) -> Mapping[str, str]:
    """Ask every running plugin for its health.

    Returns:
        The reason of each plugin that is not well, by section name.
    """
    everyone = list(states)
    await asyncio.gather(*(_check(state, runner) for state in everyone if state.state == "running"))
    return {state.name: state.reason or state.state for state in everyone if state.state != "running" or state.reason}


async def _check(state: PluginState, runner: Runner) -> None:
    loaded = state.loaded
    if loaded is None or "health" not in loaded.hooks:
        return
    try:
        await runner.call(loaded.route, "health", Call("health", f"plugin:{state.name}", f"health of {state.name}"), {})
    except PluginError as error:
        if state.fault != str(error):
            LOG.warning("plugin %s is not well: %s", state.name, error)
        state.fault = str(error)
    else:
        state.fault = ""
