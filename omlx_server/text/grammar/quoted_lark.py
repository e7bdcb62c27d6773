"""Turns a Lark grammar of a text into one of the same text inside a JSON string.

All rules become one terminal, because the engine's lexer can't tell where rewritten terminals end.
Regular expressions are those of Rust's regex crate.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from omlx_server.text.grammar.to_grammar import literal

_TERMINAL = "RULE__"  # begins the names of rules that became terminals
_SPECIAL = '"\\' + "".join(map(chr, range(0x20)))
_PLAIN = r'[^"\\\x00-\x1f]'
_CONTROLS = dict(zip("ntrfva", "\n\t\r\f\v\a", strict=True))
_LARK = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<range>"(?P<first>(?:\\.|[^"\\\n])+)"\s*\.\.\s*"(?P<last>(?:\\.|[^"\\\n])+)")
    |"(?P<string>(?:\\.|[^"\\\n])*)"(?P<any_case>i?)
    |/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*)
    |%import\s+common\.(?P<import>\w+)(?:\s*->\s*(?P<name>\w+))?
    |%import\s+common\s*\((?P<imports>[\w\s,]*)\)
    |(?P<alias>->\s*\w+)
    |[!?]?(?P<defined>_?[a-zA-Z](?:-?\w)*)(?:\.\d+)?(?=\s*:(?!:))
    |(?P<used>_?[a-zA-Z](?:-?\w)*)
    |(?P<ignore>%ignore\b)
    |(?P<foreign>%\w*|<[^<>\s]+>|[@{&]|::|~(?!\s*\d))""",
    re.VERBOSE,
)
# The terminals of `common` that match a quote, a backslash or a control character.
_COMMON: Mapping[str, str] = {
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*[^*]*\*+([^\/*][^*]*\*+)*\/",
    "SQL_COMMENT": r"--[^\n]*",
}
_REGEX = re.compile(
    r"""(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\])
    |\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|[xu]\{(?P<braced>[0-9a-fA-F]{1,6})\})
    |(?P<property>\\[pP](?:\{[^}]*\}|.))
    |(?P<perl>\\[dwsDWS])
    |\\(?P<escaped>.)
    |\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?)(?P<opens>[:)])))?
    |(?P<close>\))
    |(?P<any>\.)
    |(?P<char>["\x00-\x1f])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class QuotedLark:
    """A grammar for the inside of a JSON string. `regular`: it is one terminal."""

    text: str
    regular: bool


def quoted_lark(text: str) -> QuotedLark:
    """Return the grammar for the inside of a JSON string. Raises ValueError with the reason."""
    rules, terminal = _Grammar(), _Grammar(is_terminal=True)
    as_rules = _LARK.sub(rules.token, text)
    if rules.regular:
        quoted = f"start: {_TERMINAL}START\n{_LARK.sub(terminal.token, text)}"
        return QuotedLark(quoted, regular=True)
    if rules.escapes:
        raise ValueError("it has recursion or %ignore, and characters that JSON escapes")
    return QuotedLark(as_rules, regular=False)


class _Grammar:
    """Rewrites the tokens of a grammar. `escapes`: whether a terminal matches characters that
    JSON escapes."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self._is_terminal = is_terminal
        self._used: dict[str, set[str]] = {}
        self._names: set[str] = set()
        self._ignores = False
        self.escapes = False

    @property
    def regular(self) -> bool:
        try:
            TopologicalSorter(self._used).prepare()
        except CycleError:
            return False
        return not self._ignores

    def token(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        match match.lastgroup:
            case "comment" | "alias":
                return ""
            case "used" | "defined" as kind:
                return self._name(groups[kind], defines=kind == "defined")
            case "ignore":
                self._ignores = True
                return match[0]
            case "import" | "name" | "imports":
                names = (groups["imports"] or groups["import"]).replace(",", " ").split()
                return "\n".join(self._import(name, groups["name"] or name) for name in names)
            case "range" | "any_case" | "flags":
                return self._told(_terminal(groups), match[0])
        raise ValueError(f"{match[0]} is not supported")

    def _name(self, name: str, *, defines: bool) -> str:
        if defines:
            self._names = self._used.setdefault(name, set())
        else:
            self._names.add(name)
        return f"{_TERMINAL}{name.upper()}" if self._is_terminal and name.islower() else name

    def _import(self, name: str, own: str) -> str:
        if name in _COMMON:
            quoted = f"/{_regex(_COMMON[name], '')}/"
            return f"{own}: {self._told(quoted, '')}"
        return f"%import common.{name} -> {own}"

    def _told(self, quoted: str, source: str) -> str:
        self.escapes |= "(?-i:" in quoted or (quoted[0] == '"' and quoted != source)
        return quoted


def _terminal(found: Mapping[str, str | None]) -> str:
    if (regex := found["regex"]) is not None:
        return f"/{_regex(regex, found['flags'] or '')}/{found['flags']}"
    if (string := found["string"]) is not None:
        return _string(_unescaped(string), any_case=bool(found["any_case"]))
    first, last = (re.escape(_unescaped(found[end] or "")) for end in ("first", "last"))
    return f"/{_class(f'[{first}-{last}]')}/"


def _unescaped(string: str) -> str:
    return str(json.loads(f'"{string}"'))


def _string(text: str, *, any_case: bool) -> str:
    if any_case and text:
        return f"/{''.join(_char(char) for char in text)}/i"
    return literal(_in_json(text))


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _char(char: str) -> str:
    if char in _SPECIAL:
        return f"(?-i:{re.escape(_in_json(char))})"
    return rf"\x{{{ord(char):x}}}" if char in "/#&~- " else re.escape(char)


def _class(source: str) -> str:
    inside = source[2:-1] if source.startswith("[^") else source[1:-1]
    if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPxuU]\{|\\[pP]", inside):
        raise ValueError(f"the class {source} is not supported")
    try:
        members = re.compile(source, re.ASCII)
    except re.error:
        raise ValueError(f"the class {source} is not supported") from None
    special = [re.escape(_in_json(char)) for char in _SPECIAL if members.fullmatch(char)]
    plain = f"[{source}&&{_PLAIN}]"
    return f"(?:{plain}|(?-i:{'|'.join(special)}))" if special else plain


def _regex(source: str, flags: str) -> str:
    quoting = _RegexQuoting(dot_all=_dot_all(flags, dot_all=False))
    return _REGEX.sub(quoting.atom, source)


def _dot_all(flags: str, *, dot_all: bool) -> bool:
    on, _, off = flags.partition("-")
    if "x" in on:
        raise ValueError("the flag x is not supported")
    return (dot_all or "s" in on) and "s" not in off


class _RegexQuoting:
    """Rewrites the atoms of one expression. `dot_all`: whether a dot matches a new line, by
    group."""

    def __init__(self, *, dot_all: bool) -> None:
        self._dot_all = [dot_all]

    def atom(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        kind = match.lastgroup
        if kind in ("x", "u", "braced"):
            return _char(chr(int(groups[kind], 16)))
        if kind == "escaped" and (char := _CONTROLS.get(match[0][1], match[0][1])) in _SPECIAL:
            return _char(char)
        if kind == "property" and not re.match(r"\\p\{?[LNM]", match[0]):
            raise ValueError(f"{match[0]} is not supported")
        if kind is not None and kind in _CLASSES:
            return _CLASSES[kind](match[0])
        if kind == "any":
            return _class(r"[\s\S]" if self._dot_all[-1] else r"[^\n]")
        if match[0][0] in "()":
            self._bracket(match)
        return match[0]

    def _bracket(self, match: re.Match[str]) -> None:
        if match[0] == ")":
            # One too many is the engine's to tell.
            self._dot_all = self._dot_all[:-1] or self._dot_all
            return
        inside = _dot_all(match["flags"] or "", dot_all=self._dot_all[-1])
        if match["opens"] == ")":  # flags for the rest of this group
            self._dot_all[-1] = inside
        else:
            self._dot_all.append(inside)


_CLASSES: Mapping[str, Callable[[str], str]] = {
    "class": _class,
    "perl": lambda source: _class(f"[{source}]"),
    "char": _char,
}
