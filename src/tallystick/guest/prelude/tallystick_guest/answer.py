"""How a program finishes a run: `answer`, `FINAL`, `FINAL_VAR`, and `SHOW_VARS` to look around."""

import builtins

from tallystick_guest import describe, wire

_dumps, _str, _repr, _isinstance = wire.dumps, str, repr, isinstance
_type_name = describe.type_name
_SHOWN_CHARS_MAX = 80
_ALSO = ("Final", "final", "final_answer")
_HIDDEN = frozenset({"answer", "FINAL", "FINAL_VAR", "SHOW_VARS"})


class Answering:
    """The four names of one session, over its namespace."""

    def __init__(self, names: dict[str, object], injected: dict[str, object]) -> None:
        self._names = names
        self._injected = injected
        self._answer: dict[str, object] = {"content": None, "ready": False}
        self.bound = False

    def injected(self) -> dict[str, object]:
        """The names a program finds."""
        self.bound = True
        # As models write it too. Not among the run's own names: a variable may be called that.
        for name in _ALSO:
            setattr(builtins, name, self._final)
        return {
            "answer": self._answer,
            "FINAL": self._final,
            "FINAL_VAR": self._final_var,
            "SHOW_VARS": self._show_vars,
        }

    def renew(self) -> None:
        """Forget what an earlier program answered."""
        self._answer["content"] = None
        self._answer["ready"] = False

    def given(self) -> str | None:
        """The answer as text, if the program said that it is ready."""
        if not self._answer.get("ready"):
            return None
        content = self._answer.get("content")
        if _isinstance(content, _str):
            return content
        try:
            return _dumps(content)
        except (TypeError, ValueError, RecursionError):
            return _repr(content)

    def _final(self, value: object = None) -> None:
        """Finish with this value as the answer."""
        if value is self._answer:
            value = self._answer["content"]
            if value is None:
                raise NameError(
                    "`answer` is a name of the run itself, and holds nothing: keep your value "
                    "under another name and give that to FINAL"
                )
        self._answer["content"] = value
        self._answer["ready"] = True

    def _final_var(self, name: object) -> None:
        """Finish with the value of a variable, by its name."""
        if not _isinstance(name, _str):
            self._final(name)
            return
        if name not in self._names:
            raise NameError(f"FINAL_VAR: there is no variable {name!r}. {self._show_vars()}")
        self._final(self._names[name])

    def _show_vars(self) -> str:
        """List the variables of this session."""
        found = [
            f"{name}: {_type_name(value)}"
            for name, value in self._names.items()
            if not name.startswith("_") and name not in self._injected and name not in _HIDDEN
        ]
        return "Variables: " + (", ".join(found) if found else "none yet")
