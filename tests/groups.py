"""Which tests must run in one process of pytest-xdist, one after the other."""

import gc

import pytest

SHARED = frozenset(["class", "module", "package"])


def group_of(item: pytest.Item) -> str:
    """Name what must run in one process, one test after the other; most tests may run beside any other.

    A fixture of a whole file is made once for each of its parameters, such as the generation of real consumers.
    """
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs
    if not any(definition[-1].scope in SHARED for definition in fixtures.values()):
        return ""
    call = item.__dict__.get("callspec")
    shared = (
        [str(value) for name, value in sorted(call.params.items()) if fixtures[name][-1].scope != "function"]
        if call
        else []
    )
    return "-".join([str(item.path), *shared])


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (group := group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the tests out of the collection of garbage, and refuse to run them side by side if their groups were lost.

    Each process would make the same fixtures then.
    """
    gc.collect()
    gc.freeze()  # thousands of tests, which stay to the end
    if not getattr(session.config.option, "loadgroup", False) or not hasattr(session.config, "workerinput"):
        return
    for item in session.items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            raise pytest.UsageError(f"pytest-xdist does not see the group {mark.args[0]!r} of {item.nodeid}")
