import keyword
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug import InvalidRequest
from nodeplug.cli.scaffold import STYLES, Names, write


@pytest.mark.parametrize("typed", ["usb-camera", "USB_Camera", " nodeplug-usb-camera "])
def test_one_name_gives_all_the_others(typed: str) -> None:
    assert Names.of(typed) == Names("usb-camera", "nodeplug-usb-camera", "nodeplug_usb_camera", "UsbCamera")


@pytest.mark.parametrize(
    "typed", ["", "9p", "a--b", "-a", "a-", "a.b", "a/b", "../a", "ä", "x" * 31, "a b", "nodeplug-"]
)
def test_a_name_that_cannot_be_packaged_is_refused_with_an_example(typed: str) -> None:
    with pytest.raises(InvalidRequest, match="such as usb-camera"):
        Names.of(typed)


@pytest.mark.parametrize(("typed", "cls"), [("device", "DevicePlugin"), ("none", "NonePlugin"), ("path", "PathPlugin")])
def test_a_class_does_not_hide_what_its_module_imports(typed: str, cls: str) -> None:
    assert Names.of(typed).cls == cls


def test_the_name_of_an_installed_plugin_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nodeplug has a plugin 'bridge' already"):
        Names.of("bridge")


def test_the_name_of_an_importable_package_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there is a module nodeplug_net already"):
        Names.of("net")


@given(st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,9}){0,2}", fullmatch=True))
def test_any_accepted_name_gives_a_class_that_python_takes(typed: str) -> None:
    try:
        names = Names.of(typed)
    except InvalidRequest:
        return
    assert names.cls.isidentifier()
    assert not keyword.iskeyword(names.cls)
    assert names.package.isidentifier()


@pytest.mark.parametrize("style", STYLES)
def test_no_place_holder_is_left_in_a_package(style: str, tmp_path: Path) -> None:
    names = Names("usb-camera", "nodeplug-usb-camera", "nodeplug_usb_camera", "UsbCamera")
    for path in write(style, names, tmp_path / "p"):
        text = (tmp_path / "p" / path).read_text()
        assert "$name" not in text
        assert "$$" not in text


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InvalidRequest, match="is not empty; name another folder with --directory"):
        write("cni", Names.of("wire"), tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert Path("wire.toml") in write("cni", Names.of("wire"), tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p").touch()
    with pytest.raises(InvalidRequest, match="is a file"):
        write("cni", Names.of("wire"), tmp_path / "p")


def test_an_unknown_style_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="take one of device, cni, volume"):
        write("csi", Names.of("wire"), tmp_path)
