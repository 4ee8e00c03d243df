"""Where a plugin's class is found: among the installed ones, or in a module."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from nodeplug.loading.classes import PluginRefused
from nodeplug.loading.discovery import find


def test_an_unknown_plugin_lists_the_installed_ones() -> None:
    with pytest.raises(PluginRefused, match=r"no plugin 'nope' is installed; installed: .*bridge"):
        find("nope")


def test_a_module_that_cannot_be_imported_says_why() -> None:
    with pytest.raises(PluginRefused, match=r"ModuleNotFoundError.*; install its package into this environment"):
        find("no_such_module:Plugin")


def test_plugins_that_are_found_at_once_do_not_trip_over_each_other() -> None:
    """Importlib forgets folders that are not there, and fails when another thread has just forgotten them."""

    def look(number: int) -> str:
        for turn in range(200):
            sys.path_importer_cache.update(dict.fromkeys(f"/nonexistent/{turn}/{place}" for place in range(50)))
            find("json:JSONDecoder")
        return f"thread {number} found it"

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(look, range(4)))) == 4
    finally:
        sys.setswitchinterval(before)
