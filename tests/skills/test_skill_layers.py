"""Layers of skills: which directories there are, in which order, and which never are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.skills.test_skill_trust import Home

from tallystick.core.errors import UsageError
from tallystick.skills.layers import scan
from tallystick.skills.places import (
    LAYER_ORDER,
    find_layers,
    named_layers,
    package_layers,
    project_root,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def paths(home: Home, *, cwd: Path | None = None, **given: object) -> list[tuple[str, str]]:
    environ = {**home.environ, **{k: str(v) for k, v in given.items() if k.isupper()}}
    layers = find_layers(
        flags=given.get("flags", ()),  # type: ignore[arg-type]
        environ=environ,
        cwd=cwd or home.project,
        settings_paths=given.get("settings", ()),  # type: ignore[arg-type]
    ).layers
    assert [each.name for each in layers] == sorted(
        (each.name for each in layers), key=LAYER_ORDER.index
    )
    found = [(str(each.name), str(each.path)) for each in layers if each.name != "package"]
    return [(name, path.replace(str(home.path), "~")) for name, path in found]


def test_every_kind_of_place_is_looked_in_from_high_to_low(home: Home) -> None:
    for place in (
        "flag", "env", "conf", "code/project/.agents/skills", "code/project/.claude/skills",
        "code/project/src/.claude/skills", ".config/tallystick/skills", ".agents/skills",
        ".claude/skills",
    ):  # fmt: skip
        (home.path / place).mkdir(parents=True)

    found = paths(
        home, cwd=home.project / "src", flags=[home.path / "flag"], settings=["~/conf", "sub"],
        TALLYSTICK_SKILLS=f"{home.path}/env{os.pathsep}{os.pathsep}~/more",
    )  # fmt: skip

    assert found == [
        ("flag", "~/flag"),
        ("environment", "~/env"),
        ("environment", "~/more"),
        ("project", "~/code/project/src/.claude/skills"),
        ("project", "~/code/project/.agents/skills"),
        ("project", "~/code/project/.claude/skills"),
        ("config", "~/conf"),
        ("config", "~/code/project/src/sub"),
        ("user", "~/.config/tallystick/skills"),
        ("user", "~/.agents/skills"),
        ("user", "~/.claude/skills"),
    ]


def test_what_is_not_there_is_a_layer_only_if_somebody_named_it(home: Home) -> None:
    assert paths(home) == []
    assert paths(home, TALLYSTICK_SKILLS="/nosuch") == [("environment", "/nosuch")]
    with pytest.raises(UsageError, match="/nosuch: there is no such directory"):
        paths(home, flags=[Path("/nosuch")])
    with pytest.raises(UsageError, match="/nosuch: there is no such directory"):
        named_layers([Path("/nosuch")])


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_the_walk_ends_at_the_root_of_the_checkout(home: Home, kind: str) -> None:
    (home.path / "code" / ".agents" / "skills").mkdir(parents=True)
    assert paths(home) == [("project", "~/code/.agents/skills")]

    if kind == "directory":
        (home.project / ".git").mkdir()
    else:
        (home.project / ".git").write_text("gitdir: elsewhere")

    assert paths(home) == []
    assert project_root(home.project / "src", home.environ) == home.project


def test_a_home_is_the_users_and_never_a_projects(home: Home) -> None:
    (home.path / ".agents" / "skills").mkdir(parents=True)
    above = home.path.parent / ".agents" / "skills"
    above.mkdir(parents=True)

    for cwd in (home.path, home.project):
        assert paths(home, cwd=cwd) == [("user", "~/.agents/skills")]
    assert project_root(home.path, home.environ) == home.path


def test_a_project_that_links_to_the_users_skills_does_not_make_them_its_own(home: Home) -> None:
    (home.path / ".agents" / "skills").mkdir(parents=True)
    (home.project / ".agents").symlink_to(home.path / ".agents")

    assert paths(home) == [("user", "~/.agents/skills")]


def test_two_names_of_one_directory_are_one_layer(home: Home) -> None:
    (home.project / ".agents" / "skills").mkdir(parents=True)
    (home.project / ".claude").mkdir()
    (home.project / ".claude" / "skills").symlink_to("../.agents/skills")

    assert paths(home) == [("project", "~/code/project/.agents/skills")]


@pytest.mark.parametrize("checkout", [True, False])
def test_a_projects_directory_that_is_a_link_out_of_it_gives_nothing(
    home: Home, checkout: bool
) -> None:
    if checkout:
        (home.project / ".git").mkdir()
    home.skill("elsewhere/secret")
    (home.project / ".agents").mkdir()
    (home.project / ".agents" / "skills").symlink_to(home.path / "elsewhere")

    registry = scan(find_layers(environ=home.environ, cwd=home.project).layers)

    assert registry.skills == ()
    assert "link" in registry.failed[0].why


def test_a_working_directory_that_is_gone_has_no_project(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.path / ".agents" / "skills").mkdir(parents=True)
    gone = home.path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    found = find_layers(environ=home.environ)

    assert [each.name for each in found.layers if each.name != "package"] == ["user"]


# -- packages --------------------------------------------------------------------------------------


def distribution(site: Path, package: str, *, skills: bool = True, group: str = "") -> None:
    info = site / f"{package.replace('.', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    group = group or "tallystick.skills"
    (info / "entry_points.txt").write_text(
        f"[console_scripts]\nx = y:z\n\n[{group}]\nany = {package}  # a comment\n[other]\nq = r\n"
    )
    (site / package).mkdir()
    # Would be seen if it were run.
    (site / package / "__init__.py").write_text("raise SystemExit('imported')")
    if skills:
        (site / package / "skills").mkdir()


def test_a_package_that_declares_skills_is_a_layer_and_is_not_imported(tmp_path: Path) -> None:
    for package in ("zeta", "alpha"):
        distribution(tmp_path, package)
    distribution(tmp_path, "quiet", group="another.group")
    (tmp_path / "stray").write_text("")

    found = package_layers(directories=[str(tmp_path), str(tmp_path / "nosuch")])

    assert [(each.name, each.path) for each in found] == [
        ("package", tmp_path / "alpha" / "skills"),
        ("package", tmp_path / "zeta" / "skills"),
    ]
    assert "alpha" not in sys.modules


def test_a_package_without_skills_or_with_a_dotted_name_is_left_out_and_named(
    tmp_path: Path,
) -> None:
    distribution(tmp_path, "bare", skills=False)
    distribution(tmp_path, "dotted.name")
    notes: list[str] = []

    assert package_layers(directories=[str(tmp_path)], notes=notes) == ()
    assert [each.split()[1] for each in notes] == ["bare", "dotted.name"]


def test_a_package_installed_for_editing_is_found_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, source = tmp_path / "site", tmp_path / "source"
    distribution(site, "editable_skills_of_a_test")
    source.mkdir()
    (site / "editable_skills_of_a_test").rename(source / "editable_skills_of_a_test")
    monkeypatch.syspath_prepend(str(source))

    (found,) = package_layers(directories=[str(site)])

    assert found.path == source / "editable_skills_of_a_test" / "skills"
    assert "editable_skills_of_a_test" not in sys.modules


def test_what_a_working_directory_declares_is_no_package(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(home.project, "planted")
    monkeypatch.chdir(home.project)
    monkeypatch.syspath_prepend(str(home.project))

    assert "planted" not in {each.path.parent.name for each in package_layers()}
