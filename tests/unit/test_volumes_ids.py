"""How a volume is named when its plugin names none."""

from nodeplug.volumes.compose import default_volume_id


def test_the_default_volume_id_does_not_depend_on_the_order_of_options() -> None:
    assert default_volume_id({"a": "1", "b": "2"}) == default_volume_id({"b": "2", "a": "1"})


def test_the_default_volume_id_differs_for_different_options() -> None:
    assert default_volume_id({"a": "1"}) != default_volume_id({"a": "2"})
