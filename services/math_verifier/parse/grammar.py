r"""The outer half of the grammar: lists, relations and operators by binding power, down to the atoms.

Looseness is deliberate where model output is loose (``\frac12``, ``\sqrt3``, ``\sin x``); unmatched brackets are
errors. Every failure is a :class:`ParseError`; nesting is bounded, so no input overflows the stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from math_verifier.parse import units
from math_verifier.parse import vocabulary as voc
from math_verifier.parse.ast import (
    MINUS_ONE,
    Apply,
    BaseNum,
    Big,
    Const,
    Fn,
    Interval,
    Matrix,
    Mul,
    Node,
    Num,
    ParseError,
    Pow,
    Quantity,
    Ratio,
    Rel,
    Seq,
    SetOp,
    Sym,
    Text,
    add,
    divide,
    integer,
    multiply,
    negate,
)
from math_verifier.parse.atoms import Atoms
from math_verifier.parse.cursor import IMPLICIT, MAX_DEPTH, MOD, POWER, PRODUCT, RATIO, RELATION, SETS, SUM, UNARY
from math_verifier.parse.shapes import grouped, is_separator, joined, plain, transpose
from math_verifier.parse.tokens import Comma, tokenize

NO_UNITS: Final = frozenset(("not", "squared", "cubed", "factorial", "plus", "minus", "divided", "halves", "thirds"))
_NEGATED: Final = {"=": "!=", "!=": "=", "in": "notin", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}


def parse(text: str, comma: Comma = "thousands") -> Node:
    """Tree of a normalised answer.

    Raises:
        ParseError: the text is not an answer that the grammar knows.
    """
    try:
        return Parser(tokenize(text, comma)).whole()
    except RecursionError:
        raise ParseError("nested too deeply") from None


class Parser(Atoms):
    """Reads a whole answer."""

    def whole(self) -> Node:
        while self.is_op("&") or self.is_op("\\\\"):
            self.take()
        if self.at_end():
            raise ParseError("nothing to read")
        items, joint = self.items(())
        if not self.at_end():
            raise ParseError(f"unexpected {self.now.text!r}")
        return joined(items, joint)

    def items(self, stops: Iterable[str]) -> tuple[list[Node], str]:
        """Comma-separated statements up to a stop or the end, and what joined them: ``,``, ``and`` or ``or``."""
        items: list[Node] = []
        joint = ","
        while True:
            while self.separator():
                pass
            if self.now.kind == "eof" or self.is_op(*stops):
                break
            items.append(self.expression(RELATION))
            found = self.separator()
            if not found:
                break
            if found in {"or", "and"}:
                joint = found
            if found == "," and joint == "or":
                continue
        return items, joint

    def separator(self) -> str | None:
        """Take one separator of a list."""
        token = self.now
        if token.kind == "op" and token.text in {",", ";", "\\\\", "&"}:
            self.take()
            return ","
        if token.kind in {"word", "text"} or (token.kind == "cmd" and token.text in {"land", "lor", "wedge", "vee"}):
            word = token.text.lower().strip(" ,.;:")
            if word in {"and", "or", "und", "und/oder"} or token.text in {"land", "lor", "wedge", "vee"}:
                self.take()
                return "or" if word in {"or", "lor", "vee"} else "and"
            if token.kind == "text" and word == "":
                self.take()
                return ","
            if token.kind == "text" and word in {"for", "where", "if", "when", "with"}:
                self.take()
                return ","
        return None

    def expression(self, power: int) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(f"nested more than {MAX_DEPTH} deep")
        left = self.prefix()
        while True:
            grown = self.infix(left, power)
            if grown is None:
                break
            left = grown
        self.depth -= 1
        return left

    def infix(self, left: Node, power: int) -> Node | None:
        token = self.now
        name = token.text
        if token.kind == "eof":
            return None
        relation = self.relation()
        if relation is not None:
            return self.relations(left) if power <= RELATION else None
        if token.kind == "op" and name == "^":
            return self.superscript(left) if power <= POWER else None
        if token.kind == "op" and name == "**":
            self.take()
            return Pow(left, self.expression(UNARY if self.is_op("-", "+") else POWER))
        if token.kind == "op" and name == "'" and isinstance(left, Sym):
            self.take()
            return Sym(left.name + "'")
        if token.kind == "op" and name == "!":
            self.take()
            if self.accept("!"):
                return Fn("factorial2", (left,))
            return Fn("factorial", (left,))
        if token.kind == "op" and name in {"\\%", "%"}:
            self.take()
            return Fn("pct", (left,))
        if token.kind == "op" and name == "_":
            return self.subscript(left)
        if token.kind == "cmd" and name in {"degree", "deg", "celsius"} and not isinstance(left, Fn):
            self.take()
            return Fn("deg", (left,))
        if (token.kind == "op" and name in {"+", "-"}) or (token.kind == "cmd" and name in {"pm", "mp"}):
            return self.sum(left) if power <= SUM else None
        if (token.kind == "op" and name in {"*", "/"}) or (
            token.kind == "cmd" and name in {"cdot", "times", "div", "ast", "cdotp"}
        ):
            return self.product(left) if power <= PRODUCT else None
        if token.kind == "cmd" and name in {"cup", "cap", "setminus", "backslash", "bigcup", "smallsetminus"}:
            if power > SETS:
                return None
            self.take()
            op = {"cup": "union", "bigcup": "union", "cap": "intersection"}.get(name, "difference")
            return SetOp(op, left, self.expression(SETS + 1))
        if token.kind == "word" and name in {"U", "u"} and isinstance(left, Interval | Seq | SetOp) and power <= SETS:
            self.take()
            return SetOp("union", left, self.expression(SETS + 1))
        if token.kind == "op" and name == ":" and power <= RATIO and self.ratios:
            self.take()
            right = self.expression(RATIO + 1)
            return Ratio((*left.items, right) if isinstance(left, Ratio) else (left, right))
        if token.kind == "cmd" and name == "over" and power <= RATIO:
            self.take()
            return divide(left, self.expression(RATIO + 1))
        if token.kind in {"cmd", "word"} and name == "choose" and power <= RATIO:
            self.take()
            return Fn("binom", (left, self.expression(RATIO + 1)))
        if token.kind == "op" and name == "(" and self.peek().text in {"mod", "bmod"}:
            return self.modulo(left) if power <= MOD else None
        if (token.kind in {"cmd", "word"}) and name in {"bmod", "mod", "pmod"}:
            return self.modulo(left) if power <= MOD else None
        if token.kind == "op" and name == "|" and power <= SETS and self.bars == 0 and self.givens:
            beside = isinstance(left, Fn) and left.name == "abs" and not token.spaced
            return self.implicit(left, power) if beside else None
        return self.implicit(left, power)

    def relation(self) -> str | None:
        token = self.now
        if token.kind == "op":
            if token.text == "!" and self.peek().text == "=":
                return "!="
            return voc.RELATIONS.get(token.text)
        if token.kind == "cmd":
            if token.text == "not":
                return "not"
            return voc.RELATIONS.get(token.text)
        if token.kind == "word" and token.text == "in" and token.spaced and not self.inches_here():
            return "in"
        return None

    def relations(self, left: Node) -> Node:
        ops: list[str] = []
        terms = [left]
        while (op := self.relation()) is not None:
            self.take()
            if op == "not":
                op = _NEGATED.get(self.relation() or "", "!=")
                self.take()
            while self.is_op("&"):
                self.take()
            if op == "<" and self.is_op("="):
                self.take()
                op = "<="
            ops.append(op)
            term = self.expression(RELATION + 1)
            terms.append(
                Fn("pmod", term.args) if op == "equiv" and isinstance(term, Fn) and term.name == "mod" else term
            )
        return Rel(tuple(ops), tuple(terms))

    def sum(self, left: Node) -> Node:
        token = self.take()
        right = self.expression(SUM + 1)
        if token.text == "+":
            return add(left, right)
        if token.text == "-":
            return add(left, negate(right))
        return Fn(token.text, (left, right))

    def product(self, left: Node) -> Node:
        token = self.take()
        right = self.expression(UNARY if self.is_op("-", "+") else PRODUCT + 1)
        if token.text not in {"/", "div"}:
            return multiply(grouped(left), grouped(right))
        if isinstance(right, Quantity) and not isinstance(left, Quantity):
            return Quantity(divide(left, right.value), right.unit)
        return divide(left, right)

    def modulo(self, left: Node) -> Node:
        r"""``a \bmod n`` is a number; ``a \pmod n`` and ``a (mod n)`` are residue classes."""
        opened = self.accept("(")
        name = self.take().text
        modulus = self.group() if name == "pmod" and self.is_op("{") else self.expression(MOD + 1)
        if opened:
            self.expect(")")
        return Fn("pmod" if opened or name == "pmod" else "mod", (left, modulus))

    def superscript(self, left: Node) -> Node:
        self.take()
        if self.is_cmd("circ", "degree") or (
            self.now.kind == "word" and self.now.text == "o" and self.peek().kind == "eof"
        ):
            self.take()
            return self.after_degree(Fn("deg", (left,)))
        if (
            self.is_op("{")
            and self.peek().kind == "cmd"
            and self.peek().text in {"circ", "prime"}
            and self.peek(2).text == "}"
        ):
            self.take()
            circle = self.take().text == "circ"
            self.take()
            return self.after_degree(Fn("deg", (left,))) if circle else left
        if self.is_cmd("prime"):
            self.take()
            return Sym(left.name + "'") if isinstance(left, Sym) else left
        if self.is_op("*"):
            self.take()
            return left
        exponent = self.script()
        left = grouped(left)
        if self.is_op("^") and isinstance(exponent, Num | Sym):
            exponent = self.superscript(exponent)
        if isinstance(left, Quantity):
            return Quantity(left.value, f"{left.unit}^{plain(exponent)}")
        if isinstance(left, Matrix) and exponent in (Sym("T"), Sym("\\top")):
            return transpose(left)
        if isinstance(left, Seq) and left.kind != "list" and exponent in (Sym("T"), Sym("\\top")):
            return Matrix(tuple((item,) for item in left.items))
        return Pow(left, exponent)

    def after_degree(self, node: Node) -> Node:
        """Celsius and Fahrenheit letters are part of the degree sign."""
        braced = self.is_op("{") and self.peek(2).text == "}"
        letter = self.peek().text if braced else self.now.text
        name = {"C": "celsius", "F": "fahrenheit"}.get(letter)
        if name is not None and isinstance(node, Fn) and (braced or self.now.kind in {"word", "text"}):
            self.at += 3 if braced else 1
            return Quantity(node.args[0], name)
        return node

    def implicit(self, left: Node, power: int) -> Node | None:
        token = self.now
        if token.kind in {"text", "word"} and is_separator(token):
            return None
        if token.kind == "text" or (token.kind == "word" and self.unit_here(left)):
            return self.unit(left) if power <= IMPLICIT else None
        if not self.starts_factor() or power > IMPLICIT:
            return None
        mixed = self.mixed(left)
        if mixed is not None:
            return mixed
        if token.kind == "num" and isinstance(left, Quantity):
            return self.compound(left)
        if token.kind == "num" and isinstance(left, Num) and self.tokens[self.at - 1].text != ")":
            raise ParseError("two numbers side by side")
        right = self.expression(IMPLICIT + 1)
        return multiply(grouped(left), grouped(right))

    def mixed(self, left: Node) -> Node | None:
        r"""``1\frac45`` and ``1 1/2``, where the part is a proper fraction."""
        if isinstance(left, Mul) and len(left.factors) == 2 and left.factors[0] == MINUS_ONE:
            inner = self.mixed(left.factors[1])
            return negate(inner) if inner is not None else None
        before = self.tokens[self.at - 1]
        written = before.kind == "num" or before.text == "}"
        if not (written and isinstance(left, Num) and left.places is None and left.value.denominator == 1):
            return None
        start = self.at
        token = self.now
        if token.kind == "cmd" and token.text == "frac":
            part = self.atom()
        elif token.kind == "num" and token.spaced and self.peek().text == "/" and self.peek(2).kind == "num":
            top, _, bottom = self.take(), self.take(), self.take()
            if top.value is None or not bottom.value:
                raise ParseError("a mixed number over zero")
            part = Num(top.value / bottom.value)
            if part.value >= 1:
                raise ParseError("an improper fraction in a mixed number")
        else:
            return None
        if isinstance(part, Num) and part.places is None and (part.value > 0 or token.kind == "num"):
            if part.value >= 1:
                raise ParseError("an improper fraction in a mixed number")
            return Num(left.value + part.value)
        self.at = start
        return None

    def unit(self, left: Node) -> Node:
        parts: list[str] = []
        while self.now.kind in {"text", "word"} and (self.now.kind == "text" or not is_separator(self.now)):
            if self.now.kind == "text" and parts and is_separator(self.now):
                break
            parts.append(self.take().text.removesuffix(" and"))
            if self.is_op("/") and self.peek().kind in {"text", "word"}:
                self.take()
                parts.append("/")
            while self.is_op("^"):
                self.take()
                parts.append("^" + plain(self.script()))
        text = " ".join(parts).strip()
        words = text.lower().split()
        if (
            not NO_UNITS.isdisjoint(words)
            or (words and words[0] in {"or", "and"})
            or text.lower().strip(" ,.;") in {"and", "or"}
        ):
            raise ParseError("words that change a number where a unit may stand")
        if not text:
            return left
        first = text.split()[0]
        known = units.unit_of(first)
        if known and known[0] == "percent":
            return Fn("pct", (left,))
        if known and known[0] == "degree":
            return Fn("deg", (left,))
        return left if isinstance(left, Quantity) else Quantity(left, text)

    def compound(self, left: Quantity) -> Node:
        """``7 hours 30 minutes``: two quantities side by side; what they are together is not the grammar's matter."""
        right = self.expression(IMPLICIT)
        if not isinstance(right, Quantity):
            raise ParseError("a number behind a quantity")
        return Seq((left, right), "list")

    def subscript(self, left: Node) -> Node:
        self.take()
        if self.now.kind == "text":
            label: Node = Text(self.take().text)
        else:
            label = self.script()
        if (
            isinstance(label, Num)
            and label.digits
            and isinstance(left, Num)
            and left.digits
            and int(label.value) in range(2, 17)
        ):
            if any(int(digit, 16) >= label.value for digit in left.digits):
                raise ParseError(f"{left.digits} is not a number in base {label.value}")
            return BaseNum(left.digits, int(label.value))
        if isinstance(left, Sym | Apply):
            return Sym(f"{left.name}_{plain(label)}") if isinstance(left, Sym) else left
        if isinstance(left, Mul) and isinstance(left.factors[-1], Sym):
            return multiply(*left.factors[:-1], Sym(f"{left.factors[-1].name}_{plain(label)}"))
        if isinstance(left, Const):
            return Sym(f"{left.name}_{plain(label)}")
        if isinstance(left, Interval | Seq | Matrix | Fn | Big):
            return left
        raise ParseError("a subscript on something that takes none")

    def prefix(self) -> Node:
        token = self.now
        if token.kind == "op" and token.text in {"-", "+"}:
            self.take()
            inner = self.expression(UNARY)
            if token.text == "-" and self.is_op(",") and isinstance(inner, Num) and inner.digits == "0":
                raise ParseError("minus zero in a list")
            return negate(inner) if token.text == "-" else inner
        if token.kind == "cmd" and token.text in {"pm", "mp"}:
            self.take()
            return Fn(token.text, (integer(0), self.expression(UNARY)))
        if token.kind == "cmd" and token.text in {"neg", "lnot"}:
            raise ParseError("logic is not compared")
        return self.atom()
