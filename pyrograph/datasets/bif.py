"""The tokens of a file in the Bayesian Interchange Format, read one after the other."""

import re
from typing import NoReturn

from pyrograph.errors import DataFormatError

TOKEN = re.compile(
    r"""(?P<blank> \s+ | //[^\n]* | /\*.*?\*/ )
      | (?P<mark> [{}()\[\]|,;] )
      | "(?P<quoted> [^"\n]* )"
      | (?P<word> (?: (?!/\*) [^\s{}()\[\]|,;"] )+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class TokenStream:
    """Names, numbers and marks; whatever does not fit raises with the file and the line."""

    def __init__(self, text: str, filename: str):
        self.filename = filename
        self.tokens: list[tuple[str, bool, int]] = []  # text, whether it is a mark, line
        self.position = 0
        line, start = 1, 0
        while start < len(text):
            match = TOKEN.match(text, start)
            if match is None:
                raise DataFormatError(
                    f"{filename}:{line}: cannot read {text[start : start + 20]!r}"
                )
            if match.lastgroup != "blank":
                self.tokens.append((match[match.lastgroup], match.lastgroup == "mark", line))
            line += match[0].count("\n")
            start = match.end()

    def at_end(self) -> bool:
        return self.position == len(self.tokens)

    def take(self) -> tuple[str, bool]:
        """The next token and whether it is a mark."""
        if self.at_end():
            self.fail("the file ends inside a block")
        text, is_mark, _ = self.tokens[self.position]
        self.position += 1
        return text, is_mark

    def word(self) -> str:
        """The next token, which has to be a name or a number."""
        text, is_mark = self.take()
        if is_mark:
            self.fail(f'met "{text}" where a name or a number should stand')
        return text

    def words(self, end: str) -> list[str]:
        """Names or numbers up to the mark ``end``; some writers leave out the commas."""
        words = []
        while not self.skip(end):
            if not self.skip(","):
                words.append(self.word())
        return words

    def skip(self, text: str) -> bool:
        """Pass over the next token if it reads ``text``."""
        found = not self.at_end() and self.tokens[self.position][0] == text
        self.position += found
        return found

    def expect(self, text: str) -> None:
        found, _ = self.take()
        if found != text:
            self.fail(f'met "{found}" where "{text}" should stand')

    def fail(self, problem: str) -> NoReturn:
        """Raise with the file and the line of the last token read."""
        line = self.tokens[self.position - 1][2] if self.position else 1
        raise DataFormatError(f"{self.filename}:{line}: {problem}.")
