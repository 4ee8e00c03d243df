"""`nodeplug check-config`: the effective configuration, or every mistake."""

from typing import Any

import pytest

pytestmark = pytest.mark.unprivileged


def test_effective_configuration_shows_defaults_of_daemon_and_plugin(node: Any) -> None:
    done = node.run("check-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'exec_socket = "/run/nodeplug/exec.sock"' in done.stdout
    assert 'permissions = "rw"' in done.stdout


@pytest.mark.whole
def test_effective_configuration_is_a_configuration_itself(node: Any) -> None:
    first = node.run("check-config").stdout
    node.config.write_text(first)
    assert node.run("check-config").stdout == first


@pytest.mark.whole
def test_effective_configuration_as_json(node: Any) -> None:
    answer = node.json("check-config")
    assert answer["problems"] == []
    assert answer["configuration"]["plugins"]["hostdev"]["config"]["watch"] is True


def test_every_mistake_is_told_with_file_and_key(node: Any) -> None:
    (node.config.parent / "plugins.d").mkdir()
    drop_in = node.config.parent / "plugins.d/x.toml"
    drop_in.write_text('[plugins.other]\nuses = "hostdev"\n[plugins.other.config]\nrezources = 1\n')
    done = node.run("check-config")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {drop_in}:3: plugins.other.config.resources: is missing, and has no default",
        (
            f'error: {drop_in}:4: plugins.other.config.rezources: unknown key; did you mean "resources"? '
            "allowed: resources, watch"
        ),
    ]


def test_mistakes_of_the_main_tables_are_all_told(node: Any) -> None:
    node.configure('[supervisor]\nlog_level = "loud"\nsocket = 1\n')
    done = node.run("check-config")
    assert done.returncode == 1
    lines = {line.partition(": supervisor.")[2] for line in done.stderr.splitlines()}
    assert 'log_level: must be "debug", "info", "warning" or "error", not "loud"' in lines
    assert any(line.startswith("socket: unknown key") for line in lines)


def test_missing_file_is_one_sentence(node: Any) -> None:
    node.config.unlink()
    done = node.run("check-config")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {node.config}: the file does not exist; `--config FILE` names another\n")
    assert "Traceback" not in done.stderr


def test_plugin_that_is_not_installed_is_told(node: Any) -> None:
    node.configure("[plugins.nothing]\n")
    assert "no plugin 'nothing' is installed" in node.run("check-config").stderr


def test_a_mistake_is_one_line_whatever_a_plugin_raises(node: Any) -> None:
    (node.modules / "verse.py").write_text('raise RuntimeError("roses are red\\n\\n  violets are blue\\n")\n')
    node.configure("[plugins.poem]\nuses = 'verse:Poem'\n")
    (line,) = node.run("check-config").stderr.splitlines()
    assert line.endswith("RuntimeError: roses are red; violets are blue")


def test_checking_writes_nothing(node: Any) -> None:
    before = sorted(node.root.rglob("*"))
    node.run("check-config")
    assert sorted(node.root.rglob("*")) == before


def test_effective_configuration_ends_with_what_it_enables(node: Any) -> None:
    done = node.run("check-config")
    assert done.stdout.splitlines()[-1] == "# ok: 1 plugin, 1 resource"


@pytest.mark.whole
def test_effective_configuration_has_values_as_people_write_them_and_no_long_line(node: Any) -> None:
    cards = "\n".join("[[plugins.gpu.config.simulated]]" for _ in range(40))
    node.configure(
        f"[supervisor]\ndevice_poll = 10\n[plugins.gpu.config]\ndriver = 'simulated'\n{cards}\n"
        '[[plugins.gpu.config.resources]]\nresource = "a.b/c"\nsharing = "memory"\nunit = 1073741824\n'
    )
    done = node.run("check-config")
    assert 'device_poll = "10s"' in done.stdout
    assert 'unit = "1Gi"' in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_mistakes_of_all_files_and_all_plugins_are_told_at_once(node: Any) -> None:
    folder = node.config.parent / "plugins.d"
    folder.mkdir()
    node.configure("[supervisor]\nlisten = 5\n[plugins.tmpfs.config]\nmax_sise = '1Gi'\n")
    (folder / "a.toml").write_text("[plugins.a\n")
    (folder / "b.toml").write_text('[plugins.gpu.config]\nresources = []\n[plugins.bridge]\nuse = "x"\n')
    (folder / "c.toml").write_text("[plugins.nothing]\n")
    done = node.run("check-config")
    places = [line.split(": ")[1:3] for line in done.stderr.splitlines()]
    assert [(place.removeprefix(f"{node.config.parent}/"), key) for place, key in places] == [
        ("nodeplug.toml:3", "supervisor.listen"),
        ("nodeplug.toml:5", "plugins.tmpfs.config.max_sise"),
        ("plugins.d/a.toml:1", "is not TOML"),
        ("plugins.d/b.toml:2", "plugins.gpu.config.resources"),
        ("plugins.d/b.toml:4", "plugins.bridge.use"),
        ("plugins.d/c.toml:1", "plugins.nothing"),
    ]
    assert 'did you mean "max_size"?' in done.stderr
    assert "must have at least 1 entry, not 0" in done.stderr
