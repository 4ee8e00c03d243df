"""What a hook returned, checked against the contract.

Owns: the one check, in the thread of the call, in whatever process that is.
Refuses: to convert anything.
"""

from collections.abc import Sequence
from typing import Any

from nodeplug.contract.errors import PluginError
from nodeplug.contract.hookspecs import ANSWERS


def check_answer(plugin: str, hook: str, answer: Any) -> Any:
    """Return the answer of a hook; raise PluginError if the contract does not allow its type.

    An ADD without a result must become error 999, not an empty stdout.
    """
    allowed = ANSWERS[hook]
    names = " or ".join("a list or tuple" if kind is Sequence else kind.__name__ for kind in allowed.types)
    if not isinstance(answer, allowed.types) or (isinstance(answer, str) and str not in allowed.types):
        raise PluginError(f"plugin {plugin!r} returned {type(answer).__name__} from {hook}; expected {names}")
    if allowed.items is not None and answer is not None:
        for item in answer:
            if not isinstance(item, allowed.items):
                raise PluginError(
                    f"plugin {plugin!r} returned a {type(item).__name__} among the items of {hook}; "
                    f"expected {allowed.items.__name__}"
                )
    return answer
