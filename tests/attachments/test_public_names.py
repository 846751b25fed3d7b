"""The module `tallystick.attachments` is its contract."""

from tallystick import attachments


def test_every_public_name_is_there() -> None:
    assert [name for name in attachments.__all__ if not hasattr(attachments, name)] == []
    assert sorted(attachments.__all__) == sorted(attachments._WHERE)
