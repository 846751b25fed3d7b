"""`tally skills` as a user calls it, in a home and a project of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.skills.test_skill_trust import Home, needs_extra

from tallystick.cli.commands.skills.skills import command
from tallystick.cli.main import cli
from tallystick.core.errors import UsageError
from tallystick.skills.errors import SkillAmbiguous, SkillNotFound
from tallystick.skills.format.bundle import bundle_of
from tallystick.skills.format.folder import Folder

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(command.list_commands(click.Context(command)))


class Here(Home):
    """A home whose commands are called in its project."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (self.project / ".git").mkdir()

    @property
    def skills(self) -> Path:
        return self.project / ".agents" / "skills"

    def add(self, name: str, extra: str = "", body: str = "Do it.\n") -> Path:
        place = self.skills.relative_to(self.path) / name
        return self.skill(str(place), extra, body)

    def call(self, *words: str, say: str = "", **env: str) -> Result:
        return self.tally("skills", *words, say=say, **env)

    def tally(self, *words: str, say: str = "", **env: str) -> Result:
        gone = {name: None for name in os.environ if name.startswith(("TALLYSTICK_", "XDG_"))}
        before = Path.cwd()
        os.chdir(self.project)
        try:
            return CliRunner().invoke(
                cli, words, input=say, standalone_mode=False,
                env={**gone, **self.environ, **env},
            )  # fmt: skip
        finally:
            os.chdir(before)

    def json(self, *words: str, code: int = 0, **env: Any) -> Any:
        result = self.call(*words, "--json", **env)
        assert result.exception is None, result.exception
        assert result.return_value == code
        return json.loads(result.stdout)

    def error(self, *words: str, **env: str) -> str:
        """What is said of a wrong use: one line that no terminal obeys."""
        result = self.call(*words, **env)
        assert isinstance(result.exception, UsageError | click.UsageError), result.exception
        assert result.stdout == ""
        said = str(result.exception)
        assert said.isprintable()
        return said

    def states(self, *words: str, **env: Any) -> dict[tuple[str, str], str]:
        rows = self.json("list", *words, **env)["skills"]
        return {(row["id"], row["layer"]): row["state"] for row in rows}


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_prints_json(name: str) -> None:
    shown = CliRunner().invoke(cli, ["skills", name, "--help"]).output

    assert f"Example:\n      tally skills {name}" in shown
    assert "--json" in shown


def test_every_command_and_option_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    part = page.partition("\n### tally skills\n")[2].partition("\n### ")[0]
    context = click.Context(command)

    for name in COMMANDS:
        found = command.get_command(context, name)
        assert found is not None
        assert f"tally skills {name}" in part
        options = [opt for each in found.params for opt in each.opts if opt.startswith("--")]
        assert [each for each in options if each not in part] == [], name


# -- list and show ---------------------------------------------------------------------------------


def test_list_says_of_every_skill_where_it_is_and_whether_it_counts(here: Here) -> None:
    here.add("deploy")
    here.skill(".agents/skills/deploy")
    here.skill(".claude/skills/deploy")
    here.skill(".agents/skills/manual", "disable-model-invocation: true\n")
    broken = here.skill(".agents/skills/broken")
    (broken / "SKILL.md").write_text("---\nname: [\n---\n")

    text = here.call("list").stdout
    found = here.json("list")

    assert text.startswith("layers, from high to low: flag, environment, project, config, user, ")
    assert {(row["id"], row["layer"], row["state"]) for row in found["skills"]} == {
        ("deploy", "project", "untrusted"), ("deploy", "user", "ok"),
        ("deploy", "user", "shadowed"), ("manual", "user", "disabled"),
        ("broken", "user", "failed"),
    }  # fmt: skip
    whys = {row["state"]: row["why"] for row in found["skills"]}
    assert whys["untrusted"] == (
        "it is not trusted yet; to see and trust it: tally skills trust deploy"
    )
    assert whys["shadowed"] == f"by user {here.path}/.agents/skills/deploy"
    assert all(why in text for why in whys.values())
    assert [each["layer"] for each in found["layers"]][:3] == ["project", "user", "user"]


def test_with_dir_nothing_else_is_looked_in(here: Here) -> None:
    here.skill(".agents/skills/own")
    here.skill("more/deploy")
    here.skill("other/ship")

    found = here.states("--dir", str(here.path / "more"), "--dir", str(here.path / "other"))

    assert found == {("deploy", "flag"): "ok", ("ship", "flag"): "ok"}
    assert "there is no such directory" in here.error("list", "--dir", "nosuch")


def test_an_environment_directory_that_is_not_there_is_said_to_be(here: Here) -> None:
    result = here.call("list", TALLYSTICK_SKILLS="/nosuch")

    assert "/nosuch  (does not exist)" in result.stdout


def test_show_prints_the_manifest_and_the_files(here: Here) -> None:
    folder = here.skill(".agents/skills/deploy", "allowed-tools: Read namespace:x\n")
    (folder / "notes.txt").write_text("12345")

    text = here.call("show", "deploy").stdout
    found = here.json("show", "deploy")

    assert "description       Does deploy." in text
    assert "allowed_tools     Read, namespace:x" in text
    assert "  notes.txt  5 bytes" in text
    assert found["bundle_sha256"] == bundle_of(Folder(folder)).sha256
    assert (found["id"], found["layer"], found["usable"], found["body"]) == (
        "deploy", "user", True, None,
    )  # fmt: skip
    assert here.json("show", str(folder))["bundle_sha256"] == found["bundle_sha256"]


@pytest.mark.parametrize(
    ("extra", "hint", "asked"),
    [
        ("", None, "deploy"),
        ("argument-hint: '$(id) [environment]'\n", "$(id) [environment]", "deploy ARGUMENTS"),
        ("argument-hint: FILE\n", "FILE", "deploy ARGUMENTS"),
    ],
)
def test_show_says_how_a_user_loads_a_skill_and_with_which_arguments(
    here: Here, extra: str, hint: str | None, asked: str
) -> None:
    here.skill(".agents/skills/deploy", extra)

    lines = here.call("show", "deploy").stdout.splitlines()

    assert f'command           tally run QUESTION --skill "{asked}"' in lines
    hints = [each for each in lines if each.startswith("argument_hint")]
    assert hints == ([] if hint is None else [f"argument_hint     {hint}"])


@pytest.mark.parametrize("key", ["agent", "effort", "hooks", "shell", "requires_mcp"])
def test_show_and_lint_say_of_a_key_that_it_is_not_used_here(here: Here, key: str) -> None:
    written = key.replace("_", "-")
    here.skill(".agents/skills/deploy", f"{written}: one\nmodel: two\n")

    shown = here.call("show", "deploy").stdout.splitlines()
    checked = here.call("lint", "deploy").stdout

    unused = [each for each in shown if each.endswith("(not used here)")]
    assert [each.split()[0] for each in unused] == [key]
    assert "model             two" in shown
    assert f"warning: key.unused: '{written}' is not used here\n" in checked
    assert "'model' is read here" in checked


def test_a_skill_that_only_models_load_has_no_command(here: Here) -> None:
    here.skill(".agents/skills/deploy", "user-invocable: false\n")

    assert "tally run" not in here.call("show", "deploy").stdout


def test_show_fills_arguments_in_and_nothing_of_the_environment(here: Here) -> None:
    here.skill(".agents/skills/deploy", body="$1 to $2: $ARGUMENTS $$ ${HOME} $3\n")

    assert here.json("show", "deploy", "--args", "a b", "--args", "$1")["body"] == (
        "a b to $1: a b $1 $ ${HOME} $3"
    )
    assert here.json("show", "deploy", "--body")["body"] == "$1 to $2: $ARGUMENTS $$ ${HOME} $3"


def test_what_a_skill_says_cannot_drive_a_terminal(here: Here) -> None:
    body = "\x1b[31mred\r\x07\u202egnp\n"
    folder = here.skill(".agents/skills/deploy", 'when_to_use: "a\\e[2Jb\\nc"\n', body=body)
    strange = folder.parent / "x\x1b[31m"
    strange.mkdir()
    (strange / "SKILL.md").write_text("---\ndescription: d\n---\n")

    printed = [
        here.call(*words).output
        for words in (("list",), ("show", "deploy", "--body"), ("catalog",), ("lint", "deploy"))
    ]

    for each in printed:
        assert all(char.isprintable() or char == "\n" for char in each), each


def test_a_name_that_is_wrong_or_shared_is_one_line(here: Here) -> None:
    here.skill(".agents/skills/one/deploy")
    here.skill(".agents/skills/two/deploy")
    here.skill(".agents/skills/broken")
    (here.path / ".agents/skills/broken/SKILL.md").write_text("---\nname: [\n---\n")

    assert isinstance(here.call("show", "deploy").exception, SkillAmbiguous)
    assert isinstance(here.call("show", "deploi").exception, SkillNotFound)
    assert "one/deploy" in here.error("show", "deploy")
    assert "there is no such directory" in here.error("show", "./nosuch")
    failed = here.call("show", "broken")
    assert (failed.return_value, failed.stdout) == (1, "")
    assert failed.stderr.startswith("failed: ")


# -- lint, new and install -------------------------------------------------------------------------


def test_a_new_skill_is_well_made_and_waits_for_trust(here: Here) -> None:
    made = here.call("new", "roll-back")
    path = here.skills / "roll-back"

    assert made.stdout == f"{path}/SKILL.md\n"
    assert here.json("lint", "roll-back")[0]["problems"] == []
    assert here.states() == {("roll-back", "project"): "untrusted"}
    assert "is there already" in here.error("new", "roll-back")
    assert os.listdir(here.skills) == ["roll-back"]
    assert os.listdir(here.skills.parent) == ["skills"]


@pytest.mark.parametrize("name", ["", "A", "a--b", "a-", "a/b", "..", "a" * 65, "é", "a\n"])
def test_what_is_no_name_makes_nothing(here: Here, name: str) -> None:
    assert "is not a name for a skill" in here.error("new", name)
    assert not here.skills.exists()


def test_new_makes_it_where_it_is_told(here: Here) -> None:
    found = here.json("new", "deploy", "--dir", str(here.path / "mine" / "deep"))

    assert found["path"] == str(here.path / "mine" / "deep" / "deploy")
    assert here.json("lint", found["path"])[0]["problems"] == []
    file = here.path / "file"
    file.write_text("")
    assert "not a directory" in here.error("new", "deploy", "--dir", str(file))


def test_lint_says_what_is_wrong_and_fails_on_errors(here: Here) -> None:
    good = here.add("good")
    bad = here.add("bad")
    (bad / "SKILL.md").write_text("---\nname: Bad\n---\nx\n")

    assert here.call("lint", str(good)).return_value == 0
    assert here.call("lint", str(good / "SKILL.md")).stdout == f"{good}/SKILL.md: ok\n"
    result = here.call("lint", "good", str(bad))
    found = here.json("lint", "good", str(bad), code=1)

    assert result.return_value == 1
    assert "error: " in result.stdout
    assert [bool(each["problems"]) for each in found] == [False, True]
    assert "no skill 'nosuch'" in here.error("lint", "nosuch")
    assert "no such directory" in here.error("lint", "/nosuch")
    assert here.json("lint", "bad", code=1)[0]["path"] == str(bad)


def test_install_copies_ordinary_files_and_says_the_digest(here: Here) -> None:
    source = here.skill("download/deploy")
    (source / "scripts").mkdir()
    (source / "scripts" / "run.sh").write_text("exit 1")
    (source / "scripts" / "run.sh").chmod(0o755)

    found = here.json("install", str(source))
    target = here.path / ".agents" / "skills" / "deploy"

    assert found["path"] == str(target)
    assert found["sha256"] == bundle_of(Folder(source)).sha256 == bundle_of(Folder(target)).sha256
    assert (target / "scripts" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert os.listdir(target.parent) == ["deploy"]
    assert os.listdir(target.parent.parent) == ["skills"]
    assert here.states() == {("deploy", "user"): "ok"}


def test_install_overwrites_only_if_it_is_told_to_and_only_skills(here: Here) -> None:
    source = here.skill("download/deploy")
    target = here.path / ".agents" / "skills" / "deploy"
    here.call("install", str(source))
    (target / "old.txt").write_text("")

    assert "--force replaces it" in here.error("install", str(source))
    assert (target / "old.txt").exists()
    assert here.json("install", str(source), "--force")["replaced"]
    assert not (target / "old.txt").exists()
    (target / "SKILL.md").unlink()
    assert "is not a skill" in here.error("install", str(source), "--force")
    assert "is the skill's folder already" in here.error(
        "install", str(here.add("own")), "--project", "--force"
    )


def test_install_into_a_project_leaves_trust_to_the_user(here: Here) -> None:
    source = here.skill("download/deploy")

    result = here.call("install", str(source), "--project")

    assert "tally skills trust deploy" in result.stderr
    assert here.states() == {("deploy", "project"): "untrusted"}


@pytest.mark.parametrize("odd", ["link", "pipe", "linked folder", "link inside", "hidden name"])
def test_install_refuses_a_folder_with_links_and_writes_nothing(here: Here, odd: str) -> None:
    source = here.skill("download/deploy")
    (source / "inner").mkdir()
    match odd:
        case "link":
            (source / "x").symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(source / "inner" / "x")
        case "linked folder":
            (source / "inner" / "x").symlink_to("/etc", target_is_directory=True)
        case "hidden name":
            (source / "inner" / "x\u202e\x1b[31m").write_text("")
        case _:
            (source / "x").symlink_to("SKILL.md")

    assert "is a link, or no ordinary file" in here.error("install", str(source))
    assert not (here.path / ".agents").exists()


def test_install_does_not_write_through_a_projects_link(here: Here) -> None:
    source = here.skill("download/deploy")
    (here.path / "elsewhere").mkdir()
    (here.project / ".agents").symlink_to(here.path / "elsewhere")

    assert "is a link out of the project" in here.error("install", str(source), "--project")
    assert os.listdir(here.path / "elsewhere") == []


def test_what_is_no_skill_is_not_installed(here: Here) -> None:
    bad = here.skill("download/bad")
    (bad / "SKILL.md").write_text("---\nname: bad\n---\n")

    assert "no description" in here.error("install", str(bad))
    assert "no such directory" in here.error("install", "nosuch")
    assert "no SKILL.md in" in here.error("install", str(here.path / "download"))


# -- catalog and match -----------------------------------------------------------------------------


def test_catalog_prints_the_text_and_the_evidence(here: Here) -> None:
    for name in ("alpha", "beta", "gamma"):
        here.skill(f"s/{name}", f"when_to_use: when {name}\n")
    where = ("--dir", str(here.path / "s"))

    found = here.json("catalog", *where, "--loaded", "alpha", "--used", "beta")
    text = here.call("catalog", *where)

    assert list(found) == ["rendered", "evidence"]
    assert [each["lifecycle"] for each in found["evidence"]["cards"]] == ["loaded", "used", "shown"]
    assert text.stdout == found["rendered"] + "\n"
    assert text.stderr.endswith("shown 3, omitted 0\n")


def test_the_reference_catalog_is_that_of_other_hosts(here: Here) -> None:
    here.skill("s/alpha", "when_to_use: when alpha\n")
    long = here.skill("s/aaa")
    (long / "SKILL.md").write_text(f"---\nname: aaa\ndescription: {'x' * 3_000}. Y\n---\n")
    where = ("--dir", str(here.path / "s"), "--reference")

    found = here.json("catalog", *where, "--budget", "2000")
    whole = here.json("catalog", *where, "--budget", "9000")
    limited = here.json("catalog", *where, "--budget", "9000", "--limit", "1")

    # The long card hides the other: its short text is made here, and not in the reference.
    assert found["evidence"]["shown"] == []
    assert found["rendered"].endswith("\n\n... 2 more skill(s) omitted to stay within budget.")
    assert whole["rendered"].endswith("x. Y\n- `alpha`: Does alpha.\n  when: when alpha")
    assert (limited["evidence"]["shown"], limited["evidence"]["schema_version"]) == (["aaa"], 1)
    assert "--reference lists skills in the order of their ids" in here.error(
        "catalog", *where, "--pin", "alpha"
    )


def test_pins_and_matches_come_first(here: Here) -> None:
    for name in ("alpha", "beta", "gamma"):
        here.skill(f"s/{name}")
    where = ("--dir", str(here.path / "s"))

    pinned = here.json("catalog", *where, "--pin", "gamma", "--limit", "1")
    matched = here.json("catalog", *where, "--match", "beta please", "--limit", "1")

    assert pinned["evidence"]["shown"] == ["gamma"]
    assert matched["evidence"]["shown"] == ["beta"]
    assert "no skill 'nosuch'" in here.error("catalog", *where, "--pin", "nosuch")


def test_the_budget_is_the_one_that_is_set_unless_it_is_given(here: Here) -> None:
    here.skill("s/alpha")
    where = ("--dir", str(here.path / "s"))

    default = here.json("catalog", *where)
    variable = here.json("catalog", *where, TALLYSTICK_SKILLS_BUDGET="700")
    given = here.json("catalog", *where, "--budget", "0", TALLYSTICK_SKILLS_BUDGET="700")

    budgets = [each["evidence"]["budget_chars"] for each in (default, variable, given)]
    assert budgets == [2_000, 700, 0]
    assert "-1 is not in the range" in here.error("catalog", *where, "--budget", "-1")


def test_an_untrusted_skill_is_in_no_catalog_and_matches_nothing(here: Here) -> None:
    here.add("deploy")

    catalog, match = here.call("catalog"), here.call("match", "deploy")

    assert here.json("catalog")["evidence"]["cards"] == []
    assert here.json("match", "deploy")["candidates"] == []
    for each in (catalog, match):
        assert "deploy" not in each.output
        assert "not used: 1 skill; to see why: tally skills list" in each.stderr


def test_match_says_which_fit_and_by_what(here: Here) -> None:
    here.skill("s/deploy", "paths: ['*.yaml']\n")
    here.skill("s/other")
    where = ("--dir", str(here.path / "s"))

    found = here.json("match", "deploy it", *where, "--path", "a.yaml", "--top", "0")
    text = here.call("match", "deploy it", *where).stdout

    assert found["candidates"][0]["id"] == "deploy"
    assert found["matched"] == []
    assert text.startswith("* ")
    assert "deploy" in text


# -- trust -----------------------------------------------------------------------------------------


def test_trust_shows_what_it_is_about_to_trust_and_asks(here: Here) -> None:
    folder = here.add("deploy")

    refused = here.call("trust", "deploy", say="n\n")
    agreed = here.call("trust", "deploy", say="y\n")

    assert isinstance(refused.exception, click.Abort)
    assert agreed.stdout.splitlines() == [
        f"deploy  {folder}",
        "  Does deploy.",
        f"  SKILL.md  {(folder / 'SKILL.md').stat().st_size} bytes",
        f"  digest {bundle_of(Folder(folder)).sha256}",
    ]
    assert here.states() == {("deploy", "project"): "ok"}
    assert "is used already" in here.call("trust", "deploy").stderr


def test_trust_of_all_and_its_end(here: Here) -> None:
    one, two = here.add("one"), here.add("two")
    assert "not trusted are one, two" in here.error("trust")

    found = here.json("trust", "--all", "--yes")
    (two / "new.txt").write_text("")
    changed = here.states()
    taken = here.json("untrust", "one", str(two))

    assert [each["id"] for each in found] == ["one", "two"]
    assert found[0]["sha256"] == bundle_of(Folder(one)).sha256
    assert changed == {("one", "project"): "ok", ("two", "project"): "untrusted"}
    assert [each["was_trusted"] for each in taken] == [True, True]
    assert set(here.states().values()) == {"untrusted"}
    assert here.json("untrust", "one") == [{"name": "one", "was_trusted": False}]
    assert "no skill 'nosuch'" in here.error("untrust", "nosuch")
    assert "name skills" in here.error("untrust")


def test_trust_finds_the_projects_skill_and_not_the_one_that_is_used(here: Here) -> None:
    here.add("deploy")
    here.skill(".agents/skills/deploy")
    assert here.json("show", "deploy")["layer"] == "user"

    here.call("trust", "deploy", "--yes")

    assert here.json("show", "deploy")["layer"] == "project"


def test_a_trusted_projects_directories_still_wait_for_trust(here: Here) -> None:
    here.skill("code/project/tools/deploy")
    (here.project / "tallystick.toml").write_text("skills_paths = ['tools']")

    before = here.call("list")
    here.tally("config", "trust", "--yes")
    named = here.states()
    here.call("trust", "deploy", "--yes")

    assert "is not trusted; ignored: skills_paths" in before.stderr
    assert named == {("deploy", "config"): "untrusted"}
    assert here.states() == {("deploy", "config"): "ok"}


@needs_extra
def test_signing_verifying_and_trusting_who_signs(here: Here) -> None:
    folder = here.add("deploy")

    signed = here.call("sign", str(folder))
    public = here.directory / "signing.pub"
    unknown = here.json("verify", "deploy", code=1)
    named = here.json("verify", "deploy", "--key", str(public))
    before = here.states()
    here.call("trust", "--signer", str(public), "--yes")
    after = here.states(TALLYSTICK_SKILLS_REQUIRE_SIGNATURE="true")
    known = here.call("verify", str(folder))

    assert signed.stderr.startswith("made key ")
    assert (unknown["state"], named["state"]) == ("unknown signer", "valid")
    assert (before, after) == ({("deploy", "project"): "untrusted"}, {("deploy", "project"): "ok"})
    assert known.return_value == 0
    assert known.stdout.startswith(f"{folder}: ok: signed by ")

    here.call("untrust", "--signer", str(public))
    assert here.states() == before


@needs_extra
def test_verify_names_every_file_that_is_not_what_was_signed(here: Here) -> None:
    folder = here.add("deploy")
    (folder / "old.txt").write_text("")
    here.call("sign", str(folder))
    here.call("trust", "--signer", str(here.directory / "signing.pub"), "--yes")
    (folder / "old.txt").unlink()
    (folder / "new.txt").write_text("")
    (folder / "SKILL.md").write_text("no skill any more")

    result = here.call("verify", str(folder))

    assert result.return_value == 1
    assert result.stdout.splitlines()[1:] == [
        "  changed  SKILL.md", "  added  new.txt", "  removed  old.txt",
    ]  # fmt: skip
    (folder / "SKILL.sig").unlink()
    assert here.json("verify", str(folder), code=1)["state"] == "none"


@needs_extra
def test_where_signatures_are_required_trust_in_files_is_no_help(here: Here) -> None:
    here.add("deploy")
    required = {"TALLYSTICK_SKILLS_REQUIRE_SIGNATURE": "true"}

    assert "trust the key that signs them" in here.error("trust", "deploy", "--yes", **required)
    here.add("own", "require_signature: true\n")
    assert "requires a signature itself" in here.error("trust", "own", "--yes")
    assert [each["id"] for each in here.json("trust", "--all", "--yes")] == ["deploy"]


def test_without_the_extra_it_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here.add("deploy")
    monkeypatch.setattr("tallystick.settings.signing.signing_available", lambda: False)
    monkeypatch.setattr("tallystick.cli.commands.skills.trust.signing_available", lambda: False)

    for words in (("sign", str(folder)), ("verify", "deploy")):
        assert "pip install 'tallystick[sign]'" in here.error(*words)
    assert os.listdir(folder) == ["SKILL.md"]


def test_a_key_is_not_made_inside_the_skill_that_it_signs(here: Here) -> None:
    folder = here.add("deploy")

    said = here.error("sign", str(folder), XDG_CONFIG_HOME=str(folder))

    assert "your key is inside the skill, and would be given away with it" in said
    assert os.listdir(folder) == ["SKILL.md"]
