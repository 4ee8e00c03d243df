"""The users that plugins have of their own."""

import os
import pwd
from pathlib import Path

import pytest

from nodeplug import PluginError
from nodeplug.config import PluginSection
from nodeplug.config.models import Supervisor
from nodeplug.hosting import plugin_users
from nodeplug.hosting.plugin_users import USERS, PluginUsers


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def users(tmp_path: Path) -> PluginUsers:
    return PluginUsers(Supervisor(root=tmp_path).paths, "own")


def user_of(users: PluginUsers, name: str) -> int | None:
    return users.privileges(name, PluginSection()).user


def owned(monkeypatch: pytest.MonkeyPatch, **folders: int) -> None:
    monkeypatch.setattr(PluginUsers, "_owners", lambda _: iter(folders.items()))


def test_every_plugin_has_another_user_and_keeps_it(users: PluginUsers) -> None:
    found = [user_of(users, f"plugin-{number}") for number in range(200)]
    assert len({*found}) == 200
    assert {*found} <= {*USERS}
    assert [user_of(users, f"plugin-{number}") for number in range(200)] == found


def test_a_plugin_has_the_user_whose_its_folders_are(users: PluginUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(monkeypatch, a=USERS[7], b=0)
    assert user_of(users, "a") == USERS[7]
    assert user_of(users, "b") not in {0, USERS[7]}


def test_nobody_gets_the_user_of_a_section_that_is_gone(users: PluginUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(monkeypatch, **{f"former-{number}": user for number, user in enumerate(USERS[:-1])})
    assert user_of(users, "new") == USERS[-1]


def test_nobody_gets_a_user_that_has_an_account(users: PluginUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    account = pwd.getpwuid(0)

    def known(user: int) -> pwd.struct_passwd:
        if user == USERS[3]:
            raise KeyError(user)
        return account

    monkeypatch.setattr(pwd, "getpwuid", known)
    found = plugin_users.PluginUsers(users.paths, "own")._of("a")
    assert found == USERS[3]


def test_who_finds_no_user_left_is_told_what_to_do(users: PluginUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(monkeypatch, **{f"former-{number}": user for number, user in enumerate(USERS)})
    with pytest.raises(PluginError, match=r"plugin 'new' gets no user: all of 60578 to 61183 are taken; name a `user`"):
        user_of(users, "new")


def test_a_user_that_the_namespace_of_the_daemon_lacks_is_nobodys(
    users: PluginUsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uid_map").write_text("         0       1000          1\n", encoding="ascii")
    monkeypatch.setattr(plugin_users, "_MAP", tmp_path / "uid_map")
    assert user_of(users, "a") is None


def test_a_daemon_that_is_not_root_has_no_other_user_to_give(
    users: PluginUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert user_of(users, "a") is None
