"""Trust in skills: what a project's count for without it, what ends it, and what signatures do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tallystick.core.errors import StoreError
from tallystick.settings.files import config_directory
from tallystick.settings.settings import SkillSettings
from tallystick.settings.signing import SigningKey, open_signing_key, signing_available
from tallystick.skills.errors import SkillUnreadable
from tallystick.skills.format.bundle import SIGNATURE_NAME, bundle_of
from tallystick.skills.format.folder import Folder
from tallystick.skills.installed import skill_at
from tallystick.skills.layers import Registry, scan
from tallystick.skills.places import Layer, LayerName
from tallystick.skills.trust import Admitted, SkillTrust, check_signature, write_signature

AT_MS = 1_769_860_800_000
needs_extra = pytest.mark.skipif(
    not signing_available(), reason="the extra `sign` is not installed: signatures cannot be made"
)


class Home:
    """A home with a project in it, and skills wherever they are put."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "home"
        self.project = self.path / "code" / "project"
        self.project.mkdir(parents=True)
        self.environ = {"HOME": str(self.path)}
        self.directory = config_directory(self.environ)

    def skill(self, place: str, extra: str = "", body: str = "Do it.\n") -> Path:
        folder = self.path / place
        folder.mkdir(parents=True, exist_ok=True)
        text = f"---\nname: {folder.name}\ndescription: Does {folder.name}.\n{extra}---\n{body}"
        (folder / "SKILL.md").write_text(text)
        return folder

    def scan(self, *layers: tuple[LayerName, str]) -> Registry:
        return scan([Layer(name=name, path=self.path / path) for name, path in layers])

    def trust(self, *, require_signature: bool = False, of_project: bool = False) -> SkillTrust:
        settings = SkillSettings(require_signature=require_signature, of_project=of_project)
        return SkillTrust(self.directory, settings=settings)

    def note(self, folder: Path) -> None:
        self.trust().note({folder: bundle_of(Folder(folder))})

    def key(self, name: str = "keys") -> SigningKey:
        return open_signing_key(self.path / name, ledger=self.path / "data" / "ledger.db")

    def sign(self, folder: Path, key: SigningKey) -> None:
        write_signature(skill_at(folder), key, at_ms=AT_MS)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def told(found: Admitted) -> tuple[list[tuple[str, str]], list[str]]:
    """Which skills count, with their layers; and why the others do not."""
    return (
        [(each.id, each.layer) for each in found.registry.skills],
        [each.why for each in found.refused],
    )


# -- by digest -------------------------------------------------------------------------------------


def test_a_projects_skill_does_not_count_until_it_is_trusted(home: Home) -> None:
    folder = home.skill("p/deploy")
    registry = home.scan(("project", "p"))

    before = home.trust().admitted(registry)
    home.note(folder)
    after = home.trust().admitted(registry)

    assert told(before) == (
        [], ["it is not trusted yet; to see and trust it: tally skills trust deploy"],
    )  # fmt: skip
    assert before.bundles == {}
    assert told(after) == ([("deploy", "project")], [])
    assert after.bundles["deploy"] == bundle_of(Folder(folder))


@pytest.mark.parametrize("change", ["SKILL.md", "scripts/run.py", "added", "removed", "renamed"])
def test_any_change_of_any_file_ends_trust_and_undoing_it_brings_it_back(
    home: Home, change: str
) -> None:
    folder = home.skill("p/deploy")
    (folder / "scripts").mkdir()
    script = folder / "scripts" / "run.py"
    script.write_text("print(1)")
    home.note(folder)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    if change == "added":
        (folder / "scripts" / "more.py").write_text("")
    elif change == "removed":
        script.unlink()
    elif change == "renamed":
        script.rename(folder / "scripts" / "walk.py")
    else:
        (folder / change).write_text((folder / change).read_text() + " ")
    changed = home.trust().admitted(home.scan(("project", "p")))
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    again = home.trust().admitted(home.scan(("project", "p")))

    assert told(changed)[0] == []
    assert told(changed)[1][0].startswith("it changed since it was trusted; ")
    assert told(again) == ([("deploy", "project")], [])


def test_trust_is_for_one_place_and_can_be_taken_back(home: Home) -> None:
    first, second = home.skill("a/deploy"), home.skill("b/deploy")
    home.note(first)

    assert told(home.trust().admitted(home.scan(("project", "b"))))[0] == []
    assert home.trust().verdict(home.scan(("project", "a")).skills[0]).usable
    assert not home.trust().forget(second)
    assert home.trust().forget(first)
    assert told(home.trust().admitted(home.scan(("project", "a"))))[0] == []


@pytest.mark.parametrize(
    "layer", ["flag", "environment", "config", "user", "package", "system", "host"]
)
def test_the_users_own_directories_need_no_trust(home: Home, layer: LayerName) -> None:
    home.skill("own/deploy")

    assert told(home.trust().admitted(home.scan((layer, "own")))) == ([("deploy", layer)], [])


def test_directories_that_a_projects_file_names_need_it(home: Home) -> None:
    home.skill("own/deploy")
    registry = home.scan(("config", "own"))

    assert told(home.trust(of_project=True).admitted(registry))[0] == []
    assert told(home.trust(of_project=False).admitted(registry))[0] == [("deploy", "config")]


def test_what_may_not_be_used_hides_nothing(home: Home) -> None:
    home.skill("p/deploy")
    middle = home.skill("q/deploy")
    home.skill("u/deploy")
    registry = home.scan(("project", "p"), ("project", "q"), ("user", "u"))
    assert [each.layer for each in registry.skills] == ["project"]

    without = home.trust().admitted(registry)
    home.note(middle)
    with_one = home.trust().admitted(registry)

    assert told(without)[0] == [("deploy", "user")]
    assert len(without.refused) == 2
    assert with_one.registry.skills[0].folder.path == middle
    assert [each.skill.layer for each in with_one.registry.shadowed] == ["user"]
    assert [each.skill.folder.path for each in with_one.refused] == [home.path / "p" / "deploy"]


def test_a_name_that_only_an_untrusted_skill_shares_is_not_ambiguous(home: Home) -> None:
    home.skill("p/one/deploy")
    home.skill("u/two/deploy")

    found = home.trust().admitted(home.scan(("project", "p"), ("user", "u")))

    assert found.registry.find("deploy").id == "two/deploy"


def test_a_file_that_changes_while_it_is_looked_at_is_not_admitted(home: Home) -> None:
    folder = home.skill("p/deploy")
    registry = home.scan(("project", "p"))
    home.skill("p/deploy", body="Do something else.\n")
    home.note(folder)

    found = home.trust().admitted(registry)

    assert told(found) == ([], ["its SKILL.md changed while it was read"])


def test_a_skill_whose_files_cannot_be_told_is_not_admitted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.skill("p/deploy")
    home.note(folder)
    registry = home.scan(("project", "p"))
    monkeypatch.setattr("tallystick.skills.format.bundle.BUNDLE_BYTES_MAX", 3)

    (why,) = told(home.trust().admitted(registry))[1]

    assert why.startswith("its files cannot be read: ")


def test_what_is_noted_is_closed_to_others_and_read_as_it_was_written(home: Home) -> None:
    folder = home.skill("p/deploy")
    home.note(folder)
    path = home.directory / "trusted-skills.json"

    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == {
        "format": 1, "files": {str(folder): bundle_of(Folder(folder)).sha256},
    }  # fmt: skip
    assert not (home.directory / "trusted.json").exists()

    path.chmod(0o666)
    with pytest.raises(StoreError, match="may be written by others"):
        home.trust().admitted(home.scan(("project", "p")))


# -- by signature ----------------------------------------------------------------------------------


@needs_extra
def test_a_trusted_signers_skill_counts_without_being_asked_about(home: Home) -> None:
    folder, key = home.skill("p/deploy"), home.key()
    home.sign(folder, key)
    registry = home.scan(("project", "p"))

    unknown = told(home.trust().admitted(registry))
    home.trust().add_signer(key.public_path)
    known = home.trust().admitted(registry)
    home.skill("p/deploy", body="Do something else.\n")
    changed = told(home.trust().admitted(home.scan(("project", "p"))))
    assert home.trust().remove_signer(key.id)

    assert unknown[0] == []
    assert f"no trusted key is that of its signer {key.id}" in unknown[1][0]
    assert told(known) == ([("deploy", "project")], [])
    assert "deploy" in known.bundles
    assert changed[0] == []
    assert f"its files are not those that {key.id} signed" in changed[1][0]
    assert not home.trust().remove_signer(key.id)


@needs_extra
def test_a_key_that_cannot_be_removed_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = home.key()
    home.trust().add_signer(key.public_path)

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match=rf"{key.id}.*Permission denied"):
        home.trust().remove_signer(key.id)


@needs_extra
@pytest.mark.parametrize("layer", ["flag", "environment", "project", "config", "user", "package"])
def test_where_signatures_are_required_nothing_else_counts_in_any_layer(
    home: Home, layer: LayerName
) -> None:
    key = home.key()
    for name in ("signed", "unsigned", "strange"):
        home.skill(f"p/{name}")
    home.sign(home.path / "p" / "signed", key)
    home.sign(home.path / "p" / "strange", home.key("other"))
    home.note(home.path / "p" / "unsigned")
    home.trust().add_signer(key.public_path)

    found = told(home.trust(require_signature=True).admitted(home.scan((layer, "p"))))

    assert found[0] == [("signed", layer)]
    strange, unsigned = found[1]
    assert "no trusted key is that of its signer" in strange
    assert unsigned == "skills_require_signature is set, and it has no signature"


@needs_extra
def test_a_skill_may_ask_to_be_signed_and_by_whom(home: Home) -> None:
    one, other = home.key("one"), home.key("other")
    home.skill("u/open", "require_signature: true\n")
    home.skill("u/closed", f"require_signature: true\ntrusted_signers: [sha256:{one.id.upper()}]\n")
    registry = home.scan(("user", "u"))

    unsigned = told(home.trust().admitted(registry))
    for key in (one, other):
        home.trust().add_signer(key.public_path)
    for name in ("open", "closed"):
        home.sign(home.path / "u" / name, other)
    by_other = told(home.trust().admitted(registry))
    home.sign(home.path / "u" / "closed", one)
    by_one = told(home.trust().admitted(registry))

    assert unsigned == ([], ["it asks for a signature itself, and it has no signature"] * 2)
    assert by_other[0] == [("open", "user")]
    assert "the skill names other signers" in by_other[1][0]
    assert by_one == ([("closed", "user"), ("open", "user")], [])


@needs_extra
def test_a_key_beside_a_skill_is_never_looked_at(home: Home) -> None:
    folder, key = home.skill("p/deploy"), home.key()
    (folder / "trusted-signers").mkdir()
    (folder / "trusted-signers" / "a.pub").write_bytes(key.public_path.read_bytes())
    (folder / "signing.pub").write_bytes(key.public_path.read_bytes())
    home.sign(folder, key)

    assert told(home.trust().admitted(home.scan(("project", "p"))))[0] == []


@needs_extra
def test_a_signature_is_checked_file_by_file(home: Home) -> None:
    folder, key = home.skill("p/deploy"), home.key()
    (folder / "gone.txt").write_text("")
    home.sign(folder, key)
    home.trust().add_signer(key.public_path)
    keys = home.trust().signers().keys
    assert check_signature(Folder(folder), keys).ok

    (folder / "gone.txt").unlink()
    (folder / "new.txt").write_text("")
    home.skill("p/deploy", body="Other.\n")
    report = check_signature(Folder(folder), keys)

    assert (report.state, report.signer, report.signed_at) == (
        "changed", key.id, "2026-01-31T12:00:00Z",
    )  # fmt: skip
    assert report.difference.changed == ("SKILL.md",)
    assert report.difference.added == ("new.txt",)
    assert report.difference.removed == ("gone.txt",)


@needs_extra
def test_a_signature_that_was_tampered_with_is_bad_whoever_it_names(home: Home) -> None:
    folder, key, other = home.skill("p/deploy"), home.key(), home.key("other")
    for each in (key, other):
        home.trust().add_signer(each.public_path)
    keys = home.trust().signers().keys
    home.sign(folder, key)
    path = folder / SIGNATURE_NAME
    text = path.read_text()

    path.write_text(text.replace(key.id, other.id))
    claims_another = check_signature(Folder(folder), keys)
    path.write_text(text.replace("2026-01-31", "2027-01-31"))
    later = check_signature(Folder(folder), keys)
    path.write_text(text + "\n")
    spelt = check_signature(Folder(folder), keys)
    path.unlink()
    path.symlink_to("SKILL.md")
    linked = check_signature(Folder(folder), keys)

    assert [each.state for each in (claims_another, later, spelt, linked)] == ["bad"] * 4
    assert check_signature(Folder(home.skill("p/bare")), keys).state == "none"


@needs_extra
def test_a_signature_replaces_a_link_and_writes_through_none(home: Home) -> None:
    folder = home.skill("p/deploy")
    victim = home.path / "victim"
    victim.write_text("kept")
    (folder / SIGNATURE_NAME).symlink_to(victim)

    home.sign(folder, home.key())

    assert victim.read_text() == "kept"
    assert not (folder / SIGNATURE_NAME).is_symlink()
    assert sorted(os.listdir(folder)) == ["SKILL.md", SIGNATURE_NAME]


@needs_extra
def test_keys_that_are_none_or_that_others_may_write_are_named_and_left_out(home: Home) -> None:
    key, other = home.key(), home.key("other")
    home.trust().add_signer(key.public_path)
    home.trust().add_signer(other.public_path)
    directory = home.directory / "trusted-signers"
    (directory / "text.pub").write_text("nothing")
    (directory / f"{other.id}.pub").chmod(0o666)

    found = home.trust().signers()

    assert list(found.keys) == [key.id]
    assert sorted(each.rpartition("/")[2].partition(" ")[0] for each in found.notes) == sorted(
        ["text.pub", f"{other.id}.pub"]
    )

    directory.chmod(0o777)
    assert home.trust().signers().keys == {}


@needs_extra
def test_a_skill_that_changes_while_it_is_signed_is_not_signed(home: Home) -> None:
    folder = home.skill("p/deploy")
    skill = skill_at(folder)
    home.skill("p/deploy", body="Other.\n")

    with pytest.raises(SkillUnreadable, match="changed while it was read"):
        write_signature(skill, home.key(), at_ms=AT_MS)


def test_without_the_extra_required_signatures_refuse_and_others_are_passed_over(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.skill("p/deploy")
    (folder / SIGNATURE_NAME).write_text("{}")
    monkeypatch.setattr("tallystick.skills.trust.signing_available", lambda: False)
    registry = home.scan(("project", "p"))

    optional = told(home.trust().admitted(registry))
    required = told(home.trust(require_signature=True).admitted(registry))

    assert optional[1] == ["it is not trusted yet; to see and trust it: tally skills trust deploy"]
    assert "pip install 'tallystick[sign]'" in required[1][0]
