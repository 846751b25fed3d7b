"""Manifests: faults of form are warnings and the skill loads; what limits it fails closed."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.skills.format.frontmatter import Split, has_hidden, one_line_text, split
from tallystick.skills.format.manifest import Manifest, folder_name, manifest_of, usable_name

BIDI = "\u202eevil\u202c"


def read(yaml: str, *, directory: str = "pdf") -> tuple[Manifest | None, list[str]]:
    text = yaml if "description" in yaml else f"{yaml}\ndescription: Reads PDF files."
    manifest, problems = manifest_of(split(f"---\n{text}\n---\n".encode()), directory=directory)
    return manifest, [f"{each.level} {each.code}" for each in problems]


def used(yaml: str, *, directory: str = "pdf") -> Manifest:
    manifest, problems = read(yaml, directory=directory)
    assert manifest is not None, problems
    return manifest


def of(fields: dict[str, Any], *, directory: str = "pdf") -> tuple[Manifest | None, Any]:
    return manifest_of(Split(fields=fields, body=""), directory=directory)


def test_every_field_is_read_in_either_spelling() -> None:
    for separator in "-_":
        manifest, problems = read(
            """name: pdf
short: Reads PDFs.
description: Reads PDF files.
when_to_use: When there is a PDF.
disable-model-invocation: true
allowed-tools: Read Bash(git add:*) namespace:files *
user-invocable: false
paths: "*.pdf, docs/{a,b}/**"
context: fork
agent: reader
hooks: {start: [{run: x}]}
model: small
effort: low
require-signature: true
trusted-signers: [ab12, cd34]
shell: bash
argument-hint: [file]
requires-mcp: [github]
license: MIT
compatibility: Needs nothing
metadata:
  author: me
  version: 1.10
""".replace("-", separator)
        )

        assert problems == []
        assert manifest == Manifest(
            name="pdf",
            short="Reads PDFs.",
            description="Reads PDF files.",
            when_to_use="When there is a PDF.",
            disable_model_invocation=True,
            allowed_tools=("Read", "Bash(git add:*)", "namespace:files", "*"),
            user_invocable=False,
            paths=("*.pdf", "docs/{a,b}/**"),
            context="fork",
            agent="reader",
            hooks='{"start":[{"run":"x"}]}',
            model="small",
            effort="low",
            require_signature=True,
            trusted_signers=("ab12", "cd34"),
            shell="bash",
            argument_hint="[file]",
            requires_mcp=("github",),
            license="MIT",
            compatibility="Needs nothing",
            metadata=(("author", "me"), ("version", "1.10")),
        )


@pytest.mark.parametrize(
    ("yaml", "name", "problem"),
    [
        ("license: MIT", "pdf", "warning name.missing"),
        ("name:", "pdf", "warning name.missing"),
        ("name: [a]", "a", "warning name.type"),
        ("name: {a: b}", "pdf", "warning name.type"),
        ("name: other", "other", "warning name.folder"),
        ("name: My PDF Skill", "My PDF Skill", "warning name.folder"),
        ("name: PDF_2.0", "PDF_2.0", "warning name.folder"),
        ("name: ﬁle", "file", "warning name.folder"),
        (f"name: {'x' * 65}", "x" * 65, "warning name.long"),
        (f"name: {'x' * 129}", "pdf", "warning name.unusable"),
        ("name: a/b", "pdf", "warning name.unusable"),
        ("name: ../../etc", "pdf", "warning name.unusable"),
        ("name: ..", "pdf", "warning name.unusable"),
        ("name: -rf", "pdf", "warning name.unusable"),
        ("name: 'a`b'", "pdf", "warning name.unusable"),
        ("name: '<system>'", "pdf", "warning name.unusable"),
        ('name: "a\\nb"', "pdf", "warning name.unusable"),
        ('name: "a\\e[31mb"', "pdf", "warning name.unusable"),
        ('name: "a\\u200Bb"', "pdf", "warning name.unusable"),
        (f"name: {BIDI}", "pdf", "warning name.unusable"),
        ("name: a\uff0fb", "pdf", "warning name.unusable"),
    ],
)
def test_a_name_is_taken_as_given_or_from_the_folder(yaml: str, name: str, problem: str) -> None:
    manifest, problems = read(yaml)

    assert manifest is not None
    assert manifest.name == name
    assert problem in problems


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("pdf", "pdf"),
        ("in--voice", "in--voice"),
        ("my (old) skills", "my -old- skills"),
        ("c++", "c"),
        (".system", "system"),
        ("données", "données"),
        ("a\nb", None),
        ("\x1b[2J", None),
        (BIDI, None),
        ("caf\udce9", None),
        ("---", None),
        ("…", None),
    ],
)
def test_a_folder_gives_a_name_that_can_be_in_an_id(directory: str, name: str | None) -> None:
    assert folder_name(directory) == name


def test_without_any_name_that_can_be_used_a_skill_fails() -> None:
    manifest, problems = read("license: MIT", directory="\x1b[2J")

    assert manifest is None
    assert "error name.unusable" in problems


@pytest.mark.parametrize(
    "yaml", ["description:", "description: ''", 'description: "\\u200b"', "description: {a: b}"]
)
def test_without_a_description_a_skill_fails_unless_it_has_a_short_one(yaml: str) -> None:
    failed, problems = read(f"name: pdf\n{yaml}")
    manifest = used(f"name: pdf\n{yaml}\nshort: Reads\n")

    assert failed is None
    assert "error description.missing" in problems
    assert (manifest.description, manifest.short) == ("Reads", "Reads")


@pytest.mark.parametrize("raw", [b"# Only a body\n", b"---\nname: a\n", b"---\n[\n---\n", b"\0"])
def test_what_has_no_frontmatter_that_can_be_read_fails_with_an_error(raw: bytes) -> None:
    manifest, problems = manifest_of(split(raw), directory="a")

    assert manifest is None
    assert any(each.level == "error" for each in problems)


@pytest.mark.parametrize(
    ("description", "short"),
    [
        ("Reads PDF files. Use it for forms.", "Reads PDF files."),
        ("Reads files, e.g. PDF. And more.", "Reads files, e.g. PDF."),
        ("Reads v1.5 of it. And more.", "Reads v1.5 of it."),
        ("Reads it!", "Reads it!"),
        ("No end", "No end"),
        ("处理文件。然后更多。", "处理文件。"),
        ("word " * 40, f"{('word ' * 40)[:119].rstrip()}…"),
        ("x" * 200, f"{'x' * 119}…"),
        ("Two\n  lines. More.", "Two lines."),
    ],
)
def test_the_short_text_is_the_first_sentence_or_what_fits(description: str, short: str) -> None:
    manifest, _ = of({"name": "pdf", "description": description})

    assert manifest is not None
    assert manifest.short == short
    assert len(manifest.short) <= 120


@pytest.mark.parametrize(
    ("written", "value", "warned"),
    [
        ("true", True, False), ("True", True, False), ("FALSE", False, False),
        ("'false'", False, False),
        ("yes", True, True), ("No", False, True), ("on", True, True), ("off", False, True),
        ("1", True, True), ("0", False, True),
        ("maybe", True, True), ("", True, True), ("~", True, True), ("[false]", True, True),
        ("{a: b}", True, True), ("fals", True, True), ("'no!'", True, True),
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be_read_keeps_models_away(
    written: str, value: bool, warned: bool
) -> None:
    manifest, problems = read(f"name: pdf\ndisable-model-invocation: {written}")

    assert manifest is not None
    assert manifest.disable_model_invocation is value
    assert problems == (["warning disable-model-invocation.flag"] if warned else [])


def test_a_policy_on_signatures_that_cannot_be_read_asks_for_them() -> None:
    assert used("require_signature: perhaps").require_signature
    assert read("trusted_signers: {a: b}")[0] is None


@pytest.mark.parametrize(
    ("written", "tools"),
    [
        ("Read Write", ("Read", "Write")),
        ("Read, Write,Read", ("Read", "Write")),
        ("Bash(git log:*) Bash(jq:*)", ("Bash(git log:*)", "Bash(jq:*)")),
        ("[Read, 'Bash(a b)']", ("Read", "Bash(a b)")),
        ("\n  - Read\n  -\n  - '*'", ("Read", "*")),
        ("namespace:files", ("namespace:files",)),
        ("''", ()),
        ("[]", ()),
        ("", ()),
    ],
)
def test_allowed_tools_come_as_one_text_or_a_list(written: str, tools: tuple[str, ...]) -> None:
    assert used(f"allowed-tools: {written}").allowed_tools == tools


def test_no_word_of_tools_is_not_the_same_as_no_tools() -> None:
    assert used("name: pdf").allowed_tools is None


@pytest.mark.parametrize(
    "written",
    ["files:read", "'namespace:'", "':x'", "'namespace:a:b'", "Read a:b", "{Read: yes}", "[[Read]]",
     '"a\\u0007b"', '["a\\nb"]', '["\\u202ex"]', f"['{'x' * 257}']"],
)  # fmt: skip
def test_tools_that_cannot_be_read_fail_the_skill(written: str) -> None:
    manifest, problems = read(f"name: pdf\nallowed-tools: {written}")

    assert manifest is None
    assert problems[0].startswith("error allowed-tools.")


def test_unknown_keys_are_warnings_and_bounded() -> None:
    manifest, problems = of({"description": "x", **{f"key_{n}": "x" for n in range(500)}})

    assert manifest is not None
    assert len(problems) == 1 + 8 + 1
    assert problems[8].message == "and 492 more unknown keys"


def test_fields_of_another_kind_are_left_out_with_a_warning() -> None:
    manifest, problems = read("metadata: text\nlicense: {a: b}\npaths: {a: b}\ncontext: other")

    assert manifest is not None
    assert (manifest.metadata, manifest.license, manifest.paths) == ((), "", ())
    assert set(problems) == {
        "warning name.missing",
        "warning metadata.type",
        "warning license.type",
        "warning paths.type",
        "warning context.unknown",
    }


def test_what_is_nested_in_metadata_is_kept_as_json() -> None:
    manifest, problems = of({"description": "x", "name": "pdf", "metadata": {"a": {"b": ["c"]}}})

    assert manifest is not None
    assert manifest.metadata == (("a", '{"b":["c"]}'),)
    assert [each.code for each in problems] == ["metadata.type"]


@pytest.mark.parametrize(
    "yaml",
    [
        'allowed-tools: ["Bash(npx tool@latest status*)", "Bash(npx tool@latest get *)"]',
        "allowed-tools: Bash(browser:*), Bash(*), mcp__server__tool",
        "argument-hint: [--auto] [--until <stage>] [--from a|b]",
        "argument-hint: <init|new> [args]",
        "argument-hint: [optional notes]",
        'metadata: {"client":{"requires":{"bins":["tool"]}}}',
        "tools: ['read', 'find']\nscope: [builder]\nhomepage: https://a.example\nversion: 0.9.0",
        "description: Use when: \"do it\", 'find it': or #tag, e.g. x: y",
        "description: >-\n  Folded over\n  lines: with a colon.\ncontext: fork # isolated",
        "# modelo: x\ndescription: Úsalo cuando: siempre.",
        "keywords: a, b, c\neffort: xhigh\nmodel: GPT-5 (large)",
    ],
)
def test_what_is_met_in_practice_loads(yaml: str) -> None:
    assert used(yaml).name == "pdf"


VALUES = st.recursive(
    st.none() | st.text(max_size=20) | st.sampled_from(["true", "no", "a:b", "*", "namespace:x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from([*Manifest.__struct_fields__, "unknown", "\x1b[2J"])


@given(st.dictionaries(KEYS, VALUES, max_size=8), st.text(max_size=20))
def test_whatever_is_written_gives_a_safe_manifest_or_an_error(
    fields: dict[str, Any], directory: str
) -> None:
    manifest, problems = of(fields, directory=directory)

    assert (manifest is None) == any(each.level == "error" for each in problems)
    assert all(_is_safe_line(each.message) for each in problems)
    if manifest is not None:
        assert usable_name(manifest.name) == manifest.name
        assert _is_safe_line(manifest.short)
        assert not any(
            has_hidden(each) for each in (*manifest.paths, *(manifest.allowed_tools or ()))
        )


@given(st.text(max_size=30))
def test_a_name_that_is_usable_stays_as_it_is_and_is_safe(text: str) -> None:
    for name in (usable_name(text), folder_name(text)):
        if name is not None:
            assert usable_name(name) == name
            assert not set(name) & set("/\\`\"'<>:\n\r\t\0")
            assert _is_safe_line(name)


@given(st.text())
def test_one_line_is_one_line_and_stays_so(text: str) -> None:
    line = one_line_text(text)

    assert _is_safe_line(line)
    assert one_line_text(line) == line


def test_one_line_leaves_out_what_is_not_seen() -> None:
    hidden_tags = "".join(chr(0xE0000 + ord(each)) for each in "obey")

    assert one_line_text(f"a{hidden_tags}\x1b[31m\u202eb\u2066\ufeff\u200b \n\t c") == "a[31mb c"
    assert (
        one_line_text("\u0645\u06cc\u200c\u0631 👩\u200d💻")
        == "\u0645\u06cc\u200c\u0631 👩\u200d💻"
    )


def _is_safe_line(text: str) -> bool:
    controls = [each for each in text if unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"}]
    turned = [each for each in text if unicodedata.bidirectional(each) in
              {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}]  # fmt: skip
    return not controls and not turned and text == text.strip()
