"""Numbers that only number: a list whose items differ by nothing else repeats itself.

Goes from character to character, so that it never matters how a text was cut into pieces. It must
not know what a repetition is.
"""

from __future__ import annotations

from typing import Literal

NUMBER = "\ue000"
"""Stands for one digit of a number that opens a line: no digit, letter or mark of any text."""

_BEFORE_A_NUMBER = frozenset(" \t>#*-([第")
# fmt: off
_ANNOUNCES = frozenset((
    "step", "item", "point", "part", "question", "chapter", "section", "option", "attempt",
    "note", "q", "schritt", "punkt", "frage", "étape", "paso", "pregunta", "passo", "etapa",
    "шаг", "пункт", "вопрос", "ステップ", "질문", "단계", "الخطوة", "सवाल", "चरण",
))
# fmt: on
"""Words after which a number only numbers, in small letters."""
_ANNOUNCING = frozenset(word[:end] for word in _ANNOUNCES for end in range(1, len(word) + 1))
"""What may become one of them."""
_WIDEST_OPENING = 24

_Place = Literal["indent", "word", "number", "line"]


class Numbering:
    """Writes each digit of a number that opens a line as NUMBER; all else stays as it is."""

    __slots__ = ("_column", "_place", "_word", "in_opening")

    def __init__(self) -> None:
        self._place: _Place = "indent"
        self._column = 0
        self._word = ""
        self.in_opening = True
        """A line has opened that has not come to its first word yet."""

    def levelled(self, text: str) -> str:
        """The text, as long as it came, with the numbers that open its lines made alike."""
        if self._place == "line" and "\n" not in text:
            return text
        first, *others = text.split("\n")
        lines = [self._line(first)]
        for line in others:
            self._place, self._column, self._word = "indent", 0, ""
            lines.append(self._line(line))
        self.in_opening = self._place != "line"
        return "\n".join(lines)

    def _line(self, text: str) -> str:
        read = 0
        digits = []
        while self._place != "line" and read < len(text):
            character = text[read]
            self._place = self._next(character)
            if self._place == "number":
                digits.append(read)
            read += 1
            self._column += 1
            if self._column == _WIDEST_OPENING:
                self._place = "line"
        if not digits:
            return text
        return text[: digits[0]] + NUMBER * len(digits) + text[digits[-1] + 1 :]

    def _next(self, character: str) -> _Place:
        if "0" <= character <= "9":
            return "number" if self._place != "word" else "line"
        match self._place:
            case "indent" if character in _BEFORE_A_NUMBER:
                return "indent"
            case "indent" | "word" if character.isalpha():
                self._word += character.lower()
                return "word" if self._word in _ANNOUNCING else "line"
            case "word" if character == " " and self._word in _ANNOUNCES:
                self._word = ""
                return "indent"
            case _:
                return "line"
