"""The token cursor under the grammar, and what both halves of it need of each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from math_verifier.parse import vocabulary as voc
from math_verifier.parse.ast import Node, ParseError
from math_verifier.parse.tokens import Token

RELATION, SETS, RATIO, MOD, SUM, UNARY, PRODUCT, IMPLICIT, POWER = 10, 20, 24, 27, 30, 35, 40, 45, 60
"""Binding powers, loosest first."""
MAX_DEPTH: Final = 120


class Cursor:
    """A position in the tokens, with the state that decides what ``|`` and ``:`` mean.

    Where ``givens`` is set, a bar that opens no absolute value may come before a condition: ``{x | x > 3}``.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        self.givens = False
        self.ratios = True
        self.integrals = 0

    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "eof":
            self.at += 1
        return token

    def at_end(self) -> bool:
        return self.now.kind == "eof"

    def is_op(self, *texts: str) -> bool:
        return self.now.kind == "op" and self.now.text in texts

    def is_cmd(self, *names: str) -> bool:
        return self.now.kind == "cmd" and self.now.text in names

    def accept(self, text: str) -> bool:
        if self.is_op(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise ParseError(f"expected {text!r}, found {self.now.text or 'the end'!r}")

    def starts_factor(self) -> bool:
        token = self.now
        if token.kind in {"num", "word", "begin", "based"}:
            return True
        if token.kind == "op":
            return token.text in {"(", "[", "{", "\\{"} or (token.text == "|" and self.bars == 0)
        return token.kind == "cmd" and token.text not in voc.CLOSERS

    def expression(self, power: int) -> Node:
        """An expression whose operators bind at least as tightly as ``power``."""
        raise NotImplementedError

    def items(self, stops: Iterable[str]) -> tuple[list[Node], str]:
        """Statements up to one of ``stops`` or the end, and what joined them: ``,``, ``and`` or ``or``."""
        raise NotImplementedError

    def prefix(self) -> Node:
        """An atom with its signs."""
        raise NotImplementedError
