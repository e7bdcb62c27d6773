r"""Turns a Lark grammar of a text into one of the same text inside a JSON string.

    start: "a\"b" /[^x]/       is written within a JSON string as
    start: RULE__START
    RULE__START: "a\\\"b" /(?:[[^x]&&[^"\\\x00-\x1f]]|(?-i:\\"|…))/

All rules become one terminal, because the engine's lexer can't tell where rewritten terminals end.
Regular expressions are those of Rust's regex crate.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from omlx_server.text.grammar.to_grammar import lark_string

_TERMINAL_PREFIX = "RULE__"  # begins the names of rules that became terminals
# The characters that JSON escapes in a string, and a class of all others.
_ESCAPED_CHARS = '"\\' + "".join(map(chr, range(0x20)))
_UNESCAPED_CHARS = r'[^"\\\x00-\x1f]'
_CHAR_OF_LETTER = dict(zip("ntrfva", "\n\t\r\f\v\a", strict=True))
_LARK_TOKEN = re.compile(
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
_COMMON_TERMINALS: Mapping[str, str] = {
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
_REGEX_ATOM = re.compile(
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
    rules, terminals = _LarkRewriting(), _LarkRewriting(as_terminals=True)
    as_rules = _LARK_TOKEN.sub(rules.rewrite, text)
    if rules.regular:
        quoted = f"start: {_TERMINAL_PREFIX}START\n{_LARK_TOKEN.sub(terminals.rewrite, text)}"
        return QuotedLark(quoted, regular=True)
    if rules.escapes:
        raise ValueError("it has recursion or %ignore, and characters that JSON escapes")
    return QuotedLark(as_rules, regular=False)


class _LarkRewriting:
    """Rewrites the tokens of a grammar. `escapes`: whether a terminal matches characters that
    JSON escapes."""

    def __init__(self, *, as_terminals: bool = False) -> None:
        self._as_terminals = as_terminals
        self._names_by_rule: dict[str, set[str]] = {}
        self._names_of_this_rule: set[str] = set()
        self._ignores = False
        self.escapes = False

    @property
    def regular(self) -> bool:
        try:
            TopologicalSorter(self._names_by_rule).prepare()
        except CycleError:
            return False
        return not self._ignores

    def rewrite(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        match match.lastgroup:  # the last group of the alternative that matched
            case "comment" | "alias":
                return ""
            case "used" | "defined" as kind:
                return self._rewrite_name(groups[kind], defines=kind == "defined")
            case "ignore":
                self._ignores = True
                return match[0]
            case "import" | "name" | "imports":
                names = (groups["imports"] or groups["import"]).replace(",", " ").split()
                return "\n".join(
                    self._rewrite_import(name, groups["name"] or name) for name in names
                )
            case "range" | "any_case" | "flags":
                return self._note_escapes(_quote_terminal(groups), match[0])
        raise ValueError(f"{match[0]} is not supported")

    def _rewrite_name(self, name: str, *, defines: bool) -> str:
        if defines:
            self._names_of_this_rule = self._names_by_rule.setdefault(name, set())
        else:
            self._names_of_this_rule.add(name)
        return (
            f"{_TERMINAL_PREFIX}{name.upper()}" if self._as_terminals and name.islower() else name
        )

    def _rewrite_import(self, name: str, own: str) -> str:
        if name in _COMMON_TERMINALS:
            quoted = f"/{_quote_regex(_COMMON_TERMINALS[name], '')}/"
            return f"{own}: {self._note_escapes(quoted, '')}"
        return f"%import common.{name} -> {own}"

    def _note_escapes(self, quoted: str, source: str) -> str:
        # So `_char_pattern` writes an escape; a string with one is longer than its source.
        self.escapes |= "(?-i:" in quoted or (quoted[0] == '"' and quoted != source)
        return quoted


def _quote_terminal(groups: Mapping[str, str | None]) -> str:
    if (regex := groups["regex"]) is not None:
        return f"/{_quote_regex(regex, groups['flags'] or '')}/{groups['flags']}"
    if (string := groups["string"]) is not None:
        return _quote_string(_unescape(string), any_case=bool(groups["any_case"]))
    first, last = (re.escape(_unescape(groups[end] or "")) for end in ("first", "last"))
    return f"/{_class_pattern(f'[{first}-{last}]')}/"


def _unescape(string: str) -> str:
    return str(json.loads(f'"{string}"'))


def _quote_string(text: str, *, any_case: bool) -> str:
    if any_case and text:
        return f"/{''.join(_char_pattern(char) for char in text)}/i"
    return lark_string(_escape_for_json(text))


def _escape_for_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _char_pattern(char: str) -> str:
    if char in _ESCAPED_CHARS:
        return f"(?-i:{re.escape(_escape_for_json(char))})"
    return rf"\x{{{ord(char):x}}}" if char in "/#&~- " else re.escape(char)


def _class_pattern(source: str) -> str:
    """Return a pattern of a class in which characters that JSON escapes are escaped."""
    inside = source[2:-1] if source.startswith("[^") else source[1:-1]
    if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPxuU]\{|\\[pP]", inside):
        raise ValueError(f"the class {source} is not supported")
    try:
        members = re.compile(source, re.ASCII)
    except re.error:
        raise ValueError(f"the class {source} is not supported") from None
    special = [
        re.escape(_escape_for_json(char)) for char in _ESCAPED_CHARS if members.fullmatch(char)
    ]
    plain = f"[{source}&&{_UNESCAPED_CHARS}]"
    return f"(?:{plain}|(?-i:{'|'.join(special)}))" if special else plain


def _quote_regex(source: str, flags: str) -> str:
    quoting = _RegexRewriting(dot_all=_has_dot_all(flags, dot_all=False))
    return _REGEX_ATOM.sub(quoting.rewrite, source)


def _has_dot_all(flags: str, *, dot_all: bool) -> bool:
    switched_on, _, switched_off = flags.partition("-")
    if "x" in switched_on:
        raise ValueError("the flag x is not supported")
    return (dot_all or "s" in switched_on) and "s" not in switched_off


class _RegexRewriting:
    """Rewrites the atoms of one expression. `dot_all`: whether a dot matches a new line, by
    group."""

    def __init__(self, *, dot_all: bool) -> None:
        self._dot_all_by_group = [dot_all]

    def rewrite(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        match match.lastgroup:
            case "x" | "u" | "braced" as kind:
                return _char_pattern(chr(int(groups[kind], 16)))
            case "char":
                return _char_pattern(match[0])
            case "escaped":
                char = _CHAR_OF_LETTER.get(groups["escaped"], groups["escaped"])
                return _char_pattern(char) if char in _ESCAPED_CHARS else match[0]
            case "class":
                return _class_pattern(match[0])
            case "perl":
                return _class_pattern(f"[{match[0]}]")
            case "any":
                return _class_pattern(r"[\s\S]" if self._dot_all_by_group[-1] else r"[^\n]")
            case "property" if not re.match(r"\\p\{?[LNM]", match[0]):
                raise ValueError(f"{match[0]} is not supported")
        if match[0][0] in "()":
            self._note_bracket(match)
        return match[0]

    def _note_bracket(self, match: re.Match[str]) -> None:
        if match[0] == ")":
            # The engine refuses one too many.
            self._dot_all_by_group = self._dot_all_by_group[:-1] or self._dot_all_by_group
            return
        dot_all = _has_dot_all(match["flags"] or "", dot_all=self._dot_all_by_group[-1])
        if match["opens"] == ")":  # flags for the rest of this group
            self._dot_all_by_group[-1] = dot_all
        else:
            self._dot_all_by_group.append(dot_all)
