"""How values that JSON lacks cross to the process of a plugin, and back.

Owns: the schemas that pydantic asks a class of the contract for; a namespace crosses as a descriptor beside the text.
Refuses: sockets, and to be imported before somebody encodes: importing `nodeplug` imports no pydantic.
"""

import base64
from collections.abc import Callable
from typing import Any

from pydantic_core import core_schema


def by_descriptor(take: Callable[[int, str], Any]) -> core_schema.CoreSchema:
    """Return the schema of a class with `fd` and `path`; the context of encoding and decoding lists the descriptors.

    A received one still belongs to whoever received the message, as those of a request belong to its call.

    Args:
        take: makes the value from a received descriptor, or -1 for none, and the path; raises ValueError for one that
            it cannot be.
    """

    def read(document: Any, info: core_schema.ValidationInfo) -> Any:
        match document:
            case {"fd": int(place), "path": str(path)} if info.context and 0 <= place < len(info.context):
                return take(info.context[place], path)
            case {"fd": -1, "path": str(path)}:
                return take(-1, path)
        raise ValueError("a descriptor that came with the message is expected")

    def write(value: Any, info: core_schema.SerializationInfo) -> dict[str, Any]:
        if info.context is None:
            raise ValueError("a descriptor cannot cross here")
        if value.fd < 0:
            return {"fd": -1, "path": value.path}
        info.context.append(value.fd)
        return {"fd": len(info.context) - 1, "path": value.path}

    writer = core_schema.plain_serializer_function_ser_schema(write, info_arg=True)
    return core_schema.with_info_plain_validator_function(read, serialization=writer)


def in_base64(make: Callable[[dict[str, bytes]], Any]) -> core_schema.CoreSchema:
    """Return the schema of a mapping from names to bytes.

    Args:
        make: makes the value from decoded bytes by name.
    """

    def read(document: Any) -> Any:
        if document == {}:  # most volumes have none
            return make({})
        if not isinstance(document, dict) or not all(isinstance(text, str) for text in document.values()):
            raise ValueError("names with texts in base64 are expected")
        return make({name: base64.b64decode(text, validate=True) for name, text in document.items()})

    def write(value: Any) -> dict[str, str]:
        if not value:
            return {}
        return {name: base64.b64encode(data).decode() for name, data in value.items()}

    writer = core_schema.plain_serializer_function_ser_schema(write)
    return core_schema.no_info_plain_validator_function(read, serialization=writer)
