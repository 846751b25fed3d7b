"""What a shell command line uses, as it is read from its text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.vocabulary.program import PROGRAM_CHARS_MAX
from tallystick.vocabulary.shell import DEPTH_MAX, read_shell


def names(source: str, origin: str = "free") -> list[str]:
    program = read_shell(source)
    assert program.problem is None
    return [name.path for name in program.names if name.origin == origin]


@pytest.mark.parametrize(
    ("source", "free"),
    [
        ("git status", ["git"]),
        ("git log | head -3 |& tee x && make || echo no; ls & wait", "git head tee make ls"),
        ("A=1 B='x y' make C=2", ["make"]),
        ("A=1", []),
        ("# git\nls # git", ["ls"]),
        ("echo a#git", []),
        ("ls \\\n  git", ["ls"]),
        ("echo git > git 2>&1 < git &> git; ls >| git", ["ls"]),
        ("2>err ls", ["ls"]),
        ("/usr/bin/git x; /bin/ls; ./mine; /opt/git", "git ls ./mine /opt/git"),
        ("'git' x; \"git\" y; g\\it z", ["git"]),
        ("\"if\" x", ["if"]),
        ("$tool x; ${tool:-git}; g$x", "$tool ${tool:-git} g$x"),
        ("echo $(git x) `ls` \"$(head \"$(tail)\")\" '$(not)'", "git ls tail head"),
        ("echo `echo \\`git\\``", ["git"]),
        ("echo $((1 + $(git))) ${x:-$(ls)} \"${y:-it's}\" ${z:-'}'}", "git ls"),
        ("diff <(sort a) >(wc)", "sort wc diff"),
        ("(git; ls) | { head; }", "git ls head"),
        ("((x = git)); a=(git ls $(head)); a+=(git)", ["head"]),
        ("ls ?(git|x) @(y)", ["ls"]),
        ("if ! git; then ls; elif head; then tail; else wc; fi", "git ls head tail wc"),
        ("while git; do ls; done < git; until wc; do :; done", "git ls wc"),
        ("for x in git ls; do head $x; done; for ((i=0;i<3;i++)); do wc; done", "head wc"),
        ("case $x in git|ls) head;; (a) wc;& *) tail\nesac; sort", "head wc tail sort"),
        ("case $(git) in $(ls)) case b in c) head;; esac;; esac", "git ls head"),
        ("[[ a < git && -n $(ls) ]] && head; [ -f git ]", "ls head"),
        ("f() { git; }; f; function g { ls; }; g", "git ls"),
        ("cat <<EOF | wc\ngit $(ls) \"\nEOF\nhead", "cat wc ls head"),
        ("cat <<'EOF'\n$(git)\nEOF\nhead", "cat head"),
        ("cat <<-EOF <<<x\n\tgit\n\tEOF\nhead", "cat head"),
        ("sudo -u me timeout -k 1 5 env -u A B=1 nice -n 3 git", "sudo timeout env nice git"),
        ("command -- git; exec ls; time head; xargs -n 1 wc", "git ls head xargs wc"),
        ("find . -name ls -exec git {} \\; -ok head {} +", "find git head"),
        ("bash -euc 'git; sh -c \"ls\"'; bash x.sh -c wc", "bash git sh ls"),
        ("bash -c \"$x\"; eval git '; ls'; trap 'head' EXIT", 'bash "$x" git ls head'),
        ("find .; xargs; bash; eval; trap; timeout 5; sudo -u", "find xargs bash timeout sudo"),
        ("env -S 'git x'", ["env", "git x"]),
        ("{git,ls}; g?t", "{git,ls} g?t"),
    ],
)  # fmt: skip
def test_the_commands_are_names(source: str, free: str | list[str]) -> None:
    assert sorted(names(source)) == sorted(free.split() if isinstance(free, str) else free)


def test_what_the_shell_has_is_standard_and_what_the_text_defines_its_own() -> None:
    assert names("cd /; test a; . x; export A=1; f", "standard") == ["cd", "test", ".", "export"]
    assert names("f; f() { :; }", "own") == ["f"]


@pytest.mark.parametrize(
    "source", ["echo 'a", 'echo "a', "echo $(git", "echo `git", "echo ${x", "cat <<E\nx", "(git",
               "case x in", "case x in a) git", "[[ a", "a=(x", "echo $((1", "echo $'a"],
)  # fmt: skip
def test_a_text_that_does_not_end_what_it_begins_is_not_read(source: str) -> None:
    # A shell runs what stands on the lines before.
    program = read_shell(f"git push\n{source}")

    assert program.problem is not None
    assert program.problem.kind == "unread"
    assert program.problem.why.endswith("is missing")
    assert program.names == ()


OPENINGS = [
    "$(", "(", "`", '"$(', "<(", "${x:-", "case x in a) ", "case $(", "exec ", "eval ", "a=(", "[",
    '"', "'", "\\", "((", "$((", "{ ", "if ", "<<a\n", "|", "case x in ", "[[ ", "time ", "\n",
]  # fmt: skip


@pytest.mark.parametrize("opening", OPENINGS)
def test_repetition_is_read_or_not_read(opening: str) -> None:
    program = read_shell(opening * 1_000)

    assert program.problem is None or program.problem.kind == "unread"


@pytest.mark.slow
@pytest.mark.parametrize("opening", OPENINGS)
def test_repetition_takes_time_in_proportion_to_its_length(opening: str) -> None:
    def seconds(chars: int) -> float:
        text = opening * (chars // len(opening))
        began = time.process_time()
        read_shell(text)
        return time.process_time() - began

    shorter = min(seconds(PROGRAM_CHARS_MAX // 8) for _ in range(3))

    assert min(seconds(PROGRAM_CHARS_MAX) for _ in range(3)) < 0.05 + 30 * shorter


def test_nesting_is_read_as_deep_as_the_limit() -> None:
    def nested(levels: int) -> str:
        return "$(a " * levels + ")" * levels

    assert read_shell(f"echo {nested(DEPTH_MAX - 1)}").problem is None
    assert read_shell(f"echo {nested(DEPTH_MAX)}").problem is not None


def test_a_text_that_is_too_long_is_not_read() -> None:
    assert read_shell("a" * (PROGRAM_CHARS_MAX + 1)).problem is not None


@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            ["$(", ")", "(", "((", "))", "`", '"', "'", "\\", "\n", ";", ";;", "&", "|", "<<", "<(",
             ">", "E", "case", "esac", "in", "[[", "]]", "{", "}", "${", "if", "fi", "x", "=", " ",
             "eval", "sh", "-c", "#", "$", "find", "-exec", "function", "env", "\0", "\ud800"]
        ),
        max_size=25,
    ).map("".join)
)  # fmt: skip
def test_reading_any_text_gives_commands_or_a_problem(source: str) -> None:
    program = read_shell(source)

    assert program.problem is None or not program.names
