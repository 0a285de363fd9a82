"""What the YAML parser refuses, in our words.

The parser's own sentences are a closed set without values in them; those worth better words get
them here, the rest are passed on as they are.
"""

from __future__ import annotations

import re

from yaml import MarkedYAMLError, YAMLError

_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)

_BETTER = {
    "mapping values are not allowed in this context": (
        "a `key: value` pair cannot stand here; is the line above it complete, and is text that "
        "holds `: ` quoted?"
    ),
    "found unexpected end of stream": "a quote is opened here and never closed",
    "found invalid Unicode character escape code": (
        "this escape is no character (a lone surrogate, or past U+10FFFF)"
    ),
    "did not find expected key": "a key is expected here; is the indentation right?",
    "did not find expected '-' indicator": (
        "a `- ` entry is expected here; is the indentation right?"
    ),
    "did not find expected ',' or ']'": (
        "a list opened with `[` is not closed; `,` or `]` is missing"
    ),
    "did not find expected ',' or '}'": (
        "a mapping opened with `{` is not closed; `,` or `}` is missing"
    ),
    "could not find expected ':'": "a `:` after the key is missing",
    "did not find expected node content": "a value is expected here",
    "did not find expected <document start>": "nothing may follow the end of the document",
    "found unknown escape character": (
        "between double quotes this escape means nothing; write `\\\\` for a backslash, or use "
        "single quotes"
    ),
    "found incompatible YAML document": "a config is YAML 1.2; remove the `%YAML` line",
    "found undefined tag handle": "tags (`!…`) are not used in a config; remove it",
}


def explain(error: YAMLError, text: str) -> tuple[str, str, int]:
    """Code, sentence and offset of what the parser refused."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return _unprintable(text)
    offset = min(error.problem_mark.index, len(text))
    problem = error.problem or ""
    if _is_tab_indented(text, offset):
        return "tab_indent", "a tab stands in the indentation here; indent with spaces", offset
    if text[max(offset - 1, 0) : offset + 1] == "${":
        return (
            "unquoted_reference",
            (
                'between braces or brackets a reference must be quoted: `"${…}"` '
                "(or write the mapping over several lines)"
            ),
            offset - 1,
        )
    if problem == "exceeded maximum nesting depth":
        return "too_deep", "nesting is a thousand levels deep here", offset
    if problem == "found unexpected end of stream" and error.context_mark is not None:
        offset = min(error.context_mark.index, len(text))
    if problem == "found character that cannot start any token":
        sign = text[offset : offset + 1]
        return "yaml_syntax", f"text that begins with `{sign}` must be quoted", offset
    return "yaml_syntax", _BETTER.get(problem, f"this is no YAML: {problem}"), offset


def _is_tab_indented(text: str, offset: int) -> bool:
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1
    line = text[start : text.find("\n", offset) if "\n" in text[offset:] else len(text)]
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    return "\t" in indent


def _unprintable(text: str) -> tuple[str, str, int]:
    found = _UNPRINTABLE.search(text)
    if found is None:
        return "yaml_syntax", "this is no YAML that can be read", 0
    name = "NUL" if found[0] == "\0" else f"control character U+{ord(found[0]):04X}"
    return "control_character", f"{name} cannot stand in a config; remove it", found.start()
