r"""Recursive descent with binding powers, from tokens to the tree.

Looseness is deliberate where model output is loose (``\frac12``, ``\sqrt3``, ``\sin x``, unmatched braces are not).
Every failure is a :class:`ParseError`; nesting is bounded, so no input overflows the stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from math_verifier.parse import vocabulary as voc
from math_verifier.parse.ast import (
    HALF, MINUS_ONE, Add, Apply, BaseNum, Big, Const, Fn, Interval, Logic, Matrix, Mul, Named, Node, Num, ParseError, Pow,
    Quantity, Ratio, Rel, Seq, SetBuilder, SetOp, Sym, Text, add, divide, integer, multiply, negate,
)  # fmt: skip
from math_verifier.parse.tokens import Comma, Token, tokenize

MAX_DEPTH: Final = 120
RELATION, SETS, RATIO, MOD, SUM, UNARY, PRODUCT, IMPLICIT, POWER = 10, 20, 24, 27, 30, 35, 40, 45, 60
_OPENERS: Final = {"(": ")", "[": "]", "\\{": "\\}"}
_MATRICES: Final = frozenset(
    "pmatrix bmatrix matrix Bmatrix vmatrix Vmatrix smallmatrix array tabular psmallmatrix bsmallmatrix".split()
)
_ALIGNED: Final = frozenset("align aligned gather gathered equation cases split eqnarray".split())
_SKIPPED: Final = frozenset("mathopen mathclose rm bf it hphantom centerdot cr".split())
_FUNCTION_LETTERS: Final = frozenset("fghFGH")
_PAIRS: Final = {
    "lfloor": ("rfloor", "floor"),
    "lceil": ("rceil", "ceil"),
    "lvert": ("rvert", "abs"),
    "lVert": ("rVert", "abs"),
}
_STYLES: Final = frozenset(
    "mathbf mathrm mathit mathsf mathcal mathfrak mathscr mathbb boldsymbol bm vec hat tilde overrightarrow widehat underline textbf textit".split()
)


def parse(text: str, comma: Comma = "thousands") -> Node:
    """Tree of a normalised answer.

    Raises:
        ParseError: the text is not an answer that the grammar knows.
    """
    try:
        return _Parser(tokenize(text, comma)).whole()
    except RecursionError:
        raise ParseError("nested too deeply") from None


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0

    # -- tokens

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

    # -- lists and statements

    def whole(self) -> Node:
        while self.is_op("&") or self.is_op("\\\\"):
            self.take()
        if self.now.kind == "eof":
            raise ParseError("nothing to read")
        items, joint = self.items(())
        if self.now.kind != "eof":
            raise ParseError(f"unexpected {self.now.text!r}")
        return _joined(items, joint)

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

    # -- expressions

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
        if token.kind == "op" and name == ":" and power <= RATIO:
            self.take()
            right = self.expression(RATIO + 1)
            return Ratio((*left.items, right) if isinstance(left, Ratio) else (left, right))
        if (token.kind in {"cmd", "word"}) and name in {"bmod", "mod", "pmod"}:
            return self.modulo(left) if power <= MOD else None
        if token.kind == "op" and name == "|" and power <= SETS and self.bars == 0 and self.depth > 1:
            return None
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
        if token.kind == "word" and token.text == "in" and token.spaced:
            return "in"
        return None

    def relations(self, left: Node) -> Node:
        ops: list[str] = []
        terms = [left]
        while (op := self.relation()) is not None:
            self.take()
            if op == "not":
                op = {"=": "!=", "in": "notin"}.get(self.relation() or "", "!=")
                self.take()
            while self.is_op("&"):
                self.take()
            if op == "<" and self.is_op("="):
                self.take()
                op = "<="
            ops.append(op)
            terms.append(self.expression(RELATION + 1))
            if op == "equiv" and self.is_op("(") and self.peek().text in {"mod", "bmod"}:
                terms[-1] = self.modulo(terms[-1])
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
            return multiply(_grouped(left), _grouped(right))
        if isinstance(right, Quantity) and not isinstance(left, Quantity):
            return Quantity(divide(left, right.value), right.unit)
        return divide(left, right)

    def modulo(self, left: Node) -> Node:
        opened = self.accept("(")
        name = self.take().text
        if name == "pmod" and self.is_op("{"):
            modulus = self.group()
        else:
            modulus = self.expression(MOD + 1)
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
        if isinstance(left, Quantity):
            return Quantity(left.value, f"{left.unit}^{_plain(exponent)}")
        if isinstance(left, Matrix) and exponent in (Sym("T"), Sym("\\top")):
            return _transpose(left)
        if isinstance(left, Mul) and isinstance(left.factors[-1], Num):
            return multiply(*left.factors[:-1], Pow(left.factors[-1], exponent))
        return Pow(left, exponent)

    def after_degree(self, node: Node) -> Node:
        """Celsius and Fahrenheit letters are part of the degree sign."""
        if self.now.kind in {"word", "text"} and self.now.text in {"C", "F"}:
            self.take()
        return node

    def script(self) -> Node:
        """What follows ``^`` or ``_``: a group, a signed atom, one digit, one letter."""
        if self.is_op("{"):
            return self.group()
        if self.is_op("-", "+"):
            sign = self.take().text
            value = self.script()
            return negate(value) if sign == "-" else value
        return self.tight()

    def tight(self) -> Node:
        """A TeX argument without braces: one digit, letter or command; plain-text exponents take the whole number."""
        token = self.now
        if token.kind == "num" and token.value is not None:
            self.take()
            return Num(token.value, token.places, token.text)
        if token.kind == "word":
            return self.letter()
        if token.kind == "cmd" and token.text in voc.FUNCTIONS:
            return self.function(self.take().text)
        return self.atom()

    def letter(self) -> Node:
        """One letter off the word at hand."""
        token = self.now
        if token.text in voc.FUNCTIONS or token.text in voc.CONSTANTS:
            return self.atom()
        if len(token.text) == 1:
            self.take()
        else:
            self.tokens[self.at] = Token("word", token.text[1:], False)
        return _symbol(token.text[0])

    def digit(self) -> Node:
        """One digit off the number at hand, as ``\\frac12`` reads."""
        token = self.now
        if token.kind == "num" and len(token.text) > 1:
            rest = token.text[1:]
            self.tokens[self.at] = Token("num", rest, False, Fraction(int(rest)))
            return integer(int(token.text[0]))
        return self.tight()

    def argument(self) -> Node:
        """A TeX argument: a group or one token."""
        return self.group() if self.is_op("{") else self.digit()

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
            return Sym(f"{left.name}_{_plain(label)}") if isinstance(left, Sym) else left
        if isinstance(left, Mul) and isinstance(left.factors[-1], Sym):
            return multiply(*left.factors[:-1], Sym(f"{left.factors[-1].name}_{_plain(label)}"))
        if isinstance(left, Const):
            return Sym(f"{left.name}_{_plain(label)}")
        if isinstance(left, Interval | Seq | Matrix | Fn | Big):
            return left
        raise ParseError("a subscript on something that takes none")

    # -- implicit products, mixed numbers, units

    def implicit(self, left: Node, power: int) -> Node | None:
        token = self.now
        if token.kind in {"text", "word"} and _is_separator(token):
            return None
        if token.kind == "text" or (token.kind == "word" and self.unit_here(left)):
            return self.unit(left) if power <= IMPLICIT else None
        if not self.starts_factor() or power > IMPLICIT:
            return None
        mixed = self.mixed(left)
        if mixed is not None:
            return mixed
        if token.kind == "num" and isinstance(left, Num):
            raise ParseError("two numbers side by side")
        right = self.expression(IMPLICIT + 1)
        return multiply(_grouped(left), _grouped(right))

    def starts_factor(self) -> bool:
        token = self.now
        if token.kind in {"num", "word", "begin", "based"}:
            return True
        if token.kind == "op":
            return token.text in {"(", "[", "{", "\\{"} or (token.text == "|" and self.bars == 0)
        return token.kind == "cmd" and token.text not in {
            "rangle", "rfloor", "rceil", "rvert", "rVert", "mid", "quad", "end", "bmod", "pmod", "land", "lor", "wedge", "vee",
        }  # fmt: skip

    def mixed(self, left: Node) -> Node | None:
        r"""``1\frac45`` and ``1 1/2``, where the part is a proper fraction."""
        if isinstance(left, Mul) and len(left.factors) == 2 and left.factors[0] == MINUS_ONE:
            inner = self.mixed(left.factors[1])
            return negate(inner) if inner is not None else None
        if not (isinstance(left, Num) and left.places is None and left.value.denominator == 1):
            return None
        start = self.at
        token = self.now
        if token.kind == "cmd" and token.text == "frac":
            part = self.expression(IMPLICIT + 1)
        elif token.kind == "num" and token.spaced and self.peek().text == "/" and self.peek(2).kind == "num":
            top, _, bottom = self.take(), self.take(), self.take()
            if top.value is None or not bottom.value:
                raise ParseError("a mixed number over zero")
            part = Num(top.value / bottom.value)
            if part.value >= 1:
                raise ParseError("an improper fraction in a mixed number")
        else:
            return None
        if isinstance(part, Num) and 0 < part.value < 1 and part.places is None and left.digits:
            return Num(left.value + part.value)
        self.at = start
        return None

    def unit_here(self, left: Node) -> bool:
        """Whether the word at hand is a unit of ``left`` and not letters to multiply with."""
        word = self.now.text
        if isinstance(left, Seq | Interval | Rel | Text) or word in {"and", "or", "in", "mod", "U", "choose"}:
            return False
        if len(word) == 1:
            return False
        if word in voc.FUNCTIONS or word in voc.CONSTANTS:
            return False
        numeric = not any(isinstance(node, Sym) for node in left.walk())
        return numeric and (
            voc.unit_of(word) is not None
            or word.lower() in voc.COUNTED
            or (self.now.spaced and len(word) > 2 and _wordy(word))
        )

    def unit(self, left: Node) -> Node:
        parts: list[str] = []
        while self.now.kind in {"text", "word"} and (self.now.kind == "text" or not _is_separator(self.now)):
            if self.now.kind == "text" and parts and _is_separator(self.now):
                break
            parts.append(self.take().text)
            if self.is_op("/") and self.peek().kind in {"text", "word"}:
                self.take()
                parts.append("/")
            while self.is_op("^"):
                self.take()
                parts.append("^" + _plain(self.script()))
        text = " ".join(parts).strip()
        if text.lower().strip(" ,.;") in {"and", "or"}:
            raise ParseError("a list that ends in a conjunction")
        if not text:
            return left
        first = text.split()[0]
        known = voc.unit_of(first)
        if known and known[0] == "percent":
            return Fn("pct", (left,))
        if known and known[0] == "degree":
            return Fn("deg", (left,))
        return left if isinstance(left, Quantity) else Quantity(left, text)

    # -- atoms

    def prefix(self) -> Node:
        token = self.now
        if token.kind == "op" and token.text in {"-", "+"}:
            self.take()
            inner = self.expression(UNARY)
            return negate(inner) if token.text == "-" else inner
        if token.kind == "cmd" and token.text in {"pm", "mp"}:
            self.take()
            return Fn(token.text, (integer(0), self.expression(UNARY)))
        if token.kind == "cmd" and token.text in {"neg", "lnot"}:
            raise ParseError("logic is not compared")
        return self.atom()

    def atom(self) -> Node:
        token = self.now
        match token.kind:
            case "num":
                self.take()
                assert token.value is not None
                number = Num(token.value, token.places, token.text)
                return multiply(number, Pow(integer(10), integer(token.exponent))) if token.exponent else number
            case "based":
                self.take()
                return BaseNum(token.text.lstrip("0") or "0", token.exponent)
            case "word":
                return self.word()
            case "text":
                self.take()
                return self.labelled(voc.words(token.text))
            case "begin":
                return self.environment()
            case "cmd":
                return self.command(self.take().text)
            case "op":
                return self.opening()
        raise ParseError(f"unexpected {token.text or 'end'!r}")

    def labelled(self, text: Node) -> Node:
        """A text may label what follows: ``\\text{Area} = 5`` keeps the text, ``\\text{about } 5`` drops it."""
        if (
            isinstance(text, Text)
            and text.value in {"about", "approximately", "approx", "exactly", "only", "roughly", ""}
            and self.starts_factor()
        ):
            return self.expression(IMPLICIT)
        return text

    def opening(self) -> Node:
        token = self.take()
        text = token.text
        if text == "{":
            self.at -= 1
            return self.group()
        if text in _OPENERS:
            return self.bracket(text)
        if text == "|":
            self.bars += 1
            inner = self.expression(RELATION + 1)
            self.bars -= 1
            self.expect("|")
            return Fn("abs", (inner,))
        if text == "<":
            items, _ = self.items((">",))
            self.expect(">")
            return Seq(tuple(items), "vector")
        if text in voc.CURRENCY_SIGNS:
            return self.money("$" if text == "\\$" else text)
        if text == "&":
            return self.atom()
        if text == "\\|":
            inner = self.expression(RELATION + 1)
            self.expect("\\|")
            return Fn("abs", (inner,))
        raise ParseError(f"unexpected {text!r}")

    def money(self, sign: str) -> Node:
        amount = self.expression(IMPLICIT)
        if isinstance(amount, Quantity):
            amount = amount.value
        return Quantity(amount, sign)

    def group(self) -> Node:
        self.expect("{")
        bars, self.bars = self.bars, 0
        items, joint = self.items(("}",))
        self.bars = bars
        self.expect("}")
        if not items:
            raise ParseError("an empty group")
        return _joined(items, joint)

    def bracket(self, opener: str) -> Node:
        bars, self.bars = self.bars, 0
        if opener == "(" and self.is_cmd("text"):
            self.take()
        items, joint = self.items((")", "]", "\\}"))
        if opener == "\\{" and (self.is_op("|", ":") or self.is_cmd("mid")):
            self.take()
            conditions, how = self.items(("\\}",))
            self.expect("\\}")
            self.bars = bars
            return SetBuilder(_joined(items, joint), _joined(conditions, how))
        self.bars = bars
        closer = self.take()
        if closer.kind != "op" or closer.text not in {")", "]", "\\}"}:
            raise ParseError(f"{opener!r} is never closed")
        if opener == "\\{":
            if closer.text != "\\}":
                raise ParseError("a set closed by another bracket")
            if len(items) == 1 and isinstance(items[0], Ratio) and len(items[0].items) == 2:
                return SetBuilder(*items[0].items)
            return Seq(tuple(items), "set") if items else Named("empty")
        if closer.text == "\\}" or not items:
            raise ParseError("brackets do not match")
        if len(items) == 2 and (opener, closer.text) != ("(", ")"):
            return Interval(items[0], items[1], opener == "(", closer.text == ")")
        if opener == "(" and closer.text == ")":
            return items[0] if len(items) == 1 else Seq(tuple(items), "tuple")
        if len(items) == 1 and (opener, closer.text) == ("[", "]"):
            return items[0]
        if opener == "[" and closer.text == "]":
            if all(isinstance(item, Seq) and item.kind == "bracket" or isinstance(item, Interval) for item in items):
                return _rows(items)
            return Seq(tuple(items), "bracket")
        raise ParseError("brackets do not match")

    def environment(self) -> Node:
        name = self.take().text.rstrip("*")
        if name in _ALIGNED:
            items, joint = self.items(())
            self.end(name)
            return _joined(items, joint)
        if name not in _MATRICES:
            raise ParseError(f"environment {name!r} is not an answer")
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while self.now.kind not in {"end", "eof"}:
            if self.accept("&"):
                continue
            if self.accept("\\\\") or self.is_cmd("cr"):
                if self.is_cmd("cr"):
                    self.take()
                if row:
                    rows.append(tuple(row))
                row = []
                continue
            if self.is_cmd("hline"):
                self.take()
                continue
            row.append(self.expression(RELATION))
        if row:
            rows.append(tuple(row))
        self.end(name)
        if not rows or len({len(cells) for cells in rows}) != 1:
            raise ParseError("a matrix with rows of different lengths")
        matrix = Matrix(tuple(rows))
        return Fn("det", (matrix,)) if name == "vmatrix" else matrix

    def end(self, name: str) -> None:
        token = self.take()
        if token.kind != "end" or token.text.rstrip("*") != name:
            raise ParseError(f"environment {name!r} is never closed")

    def word(self) -> Node:
        token = self.now
        text = token.text
        if text in voc.CONSTANTS:
            self.take()
            return voc.CONSTANTS[text]
        if text in voc.FUNCTIONS and text not in {"tr", "lg", "Re", "Im"}:
            self.take()
            return self.function(text)
        if text in voc.GREEK:
            self.take()
            return Sym("\\" + text)
        if len(text) > 1:
            for size in range(min(7, len(text)), 1, -1):
                if text[:size] in voc.FUNCTIONS or text[:size] in {"pi"}:
                    self.tokens[self.at] = Token("word", text[size:], False)
                    if not text[size:]:
                        self.take()
                    return voc.CONSTANTS["pi"] if text[:size] == "pi" else self.function(text[:size])
            return self.letter()
        self.take()
        if text in _FUNCTION_LETTERS and self.is_op("(", "'"):
            return self.application(text)
        if text in {"C", "P"} and self.is_op("(") and self.peek().kind == "num" and self.peek(2).text == ",":
            self.take()
            items, _ = self.items((")",))
            self.expect(")")
            return Fn("binom" if text == "C" else "perm", tuple(items))
        return _symbol(text)

    def application(self, name: str) -> Node:
        while self.accept("'"):
            name += "'"
        if not self.accept("("):
            return Sym(name)
        items, _ = self.items((")",))
        self.expect(")")
        return Apply(name, tuple(items))

    def command(self, name: str) -> Node:
        if name in voc.FUNCTIONS and name not in {"sqrt", "binom"}:
            return self.function(name)
        if name in voc.CONSTANTS:
            return voc.CONSTANTS[name]
        if name in voc.GREEK:
            return Sym("\\" + name)
        if name in voc.CURRENCY_COMMANDS:
            return self.money(voc.CURRENCY_COMMANDS[name])
        if name in _PAIRS:
            closer, function = _PAIRS[name]
            inner = self.expression(RELATION + 1)
            if not self.is_cmd(closer):
                raise ParseError(f"\\{name} is never closed")
            self.take()
            return Fn(function, (inner,))
        match name:
            case "frac":
                top = self.argument()
                bottom = self.argument()
                if isinstance(top, Quantity):
                    return Quantity(divide(top.value, bottom), top.unit)
                return divide(top, bottom)
            case "sqrt":
                return self.root()
            case "binom" | "tbinom" | "dbinom":
                return Fn("binom", (self.argument(), self.argument()))
            case "langle":
                items, _ = self.items(())
                if not self.is_cmd("rangle"):
                    raise ParseError("\\langle is never closed")
                self.take()
                return Seq(tuple(items), "vector")
            case "sum" | "prod" | "int" | "lim" | "iint":
                return self.big(name)
            case "mathbb" | "mathbf" | "mathcal" | "Bbb":
                inner = self.argument()
                if isinstance(inner, Sym) and inner.name in voc.NUMBER_SETS:
                    return self.number_set(inner.name)
                return inner
            case "overline" | "bar":
                inner = self.argument()
                if isinstance(inner, Num):
                    return inner
                if isinstance(inner, Sym):
                    return Fn("conj", (inner,))
                return Sym("overline " + _plain(inner))
            case "angle" | "triangle" | "measuredangle" | "arc" | "widearc":
                inner = self.expression(IMPLICIT)
                return Sym(f"{name} {_plain(inner)}")
            case "nabla" | "partial" | "square" | "star" | "bullet" | "top" | "checkmark":
                return Sym("\\" + name)
            case "not":
                raise ParseError("a negated symbol that is no relation")
        if name in _STYLES:
            return self.argument()
        if name in _SKIPPED:
            return self.atom()
        raise ParseError(f"command \\{name} is not known")

    def number_set(self, letter: str) -> Node:
        if self.is_op("^") and self.peek().text in {"+", "-", "*", "n"}:
            self.take()
            return Named(letter + self.take().text)
        return Named(letter)

    def root(self) -> Node:
        degree: Node | None = None
        if self.accept("["):
            degree = self.expression(RELATION)
            self.expect("]")
        inner = self.argument()
        if degree is None:
            return Pow(inner, HALF)
        return Fn("root", (inner, degree))

    def function(self, spelling: str) -> Node:
        name = voc.FUNCTIONS[spelling]
        base: Node | None = None
        power: Node | None = None
        for _ in range(2):
            if self.is_op("_") and base is None:
                self.take()
                base = self.script() if self.is_op("{") else self.digit()
            elif self.is_op("^") and power is None:
                self.take()
                power = self.script() if self.is_op("{") else self.digit()
        if power == MINUS_ONE and name in voc.INVERSES:
            name, power = voc.INVERSES[name], None
        args = self.function_arguments()
        if name == "sqrt":
            result: Node = Pow(args[0], HALF)
        elif name == "cbrt":
            result = Fn("root", (args[0], integer(3)))
        elif name == "log":
            result = Fn("log", (args[0], base)) if base is not None else Fn("log", args)
        elif name in {"gcd", "lcm", "max", "min", "binom"} and len(args) == 1 and isinstance(args[0], Seq):
            result = Fn(name, args[0].items)
        else:
            result = Fn(name, args)
        return Pow(result, power) if power is not None else result

    def function_arguments(self) -> tuple[Node, ...]:
        """Arguments in brackets, or the product that follows: ``\\sin 2x``."""
        if self.accept("("):
            bars, self.bars = self.bars, 0
            items, _ = self.items((")",))
            self.bars = bars
            self.expect(")")
            if not items:
                raise ParseError("a function of nothing")
            return tuple(items)
        if self.is_op("{"):
            inner = self.group()
            return inner.items if isinstance(inner, Seq) and inner.kind == "list" else (inner,)
        if self.is_op("-", "+"):
            return (self.prefix(),)
        factors: list[Node] = []
        while self.starts_factor() and not (factors and self.ends_argument()):
            if self.now.kind == "word" and factors and self.unit_here(factors[-1]):
                break
            factors.append(self.expression(IMPLICIT + 1))
        if not factors:
            raise ParseError("a function of nothing")
        node = multiply(*factors)
        if self.is_op("/") and self.peek().kind == "num" and not self.peek().spaced:
            self.take()
            node = divide(node, self.expression(IMPLICIT + 1))
        return (node,)

    def ends_argument(self) -> bool:
        token = self.now
        if token.kind == "op":
            return token.text in {"(", "[", "|", "\\{"}
        if token.kind == "word":
            return token.text in voc.FUNCTIONS or token.text == "d"
        return token.kind == "cmd" and (
            token.text in voc.FUNCTIONS
            or token.text in {"cdot", "times", "div", "cup", "cap", "setminus", "pm", "mp", "sum", "int"}
            or token.text in voc.RELATIONS
        )

    def big(self, name: str) -> Node:
        low: Node | None = None
        high: Node | None = None
        for _ in range(2):
            if self.is_op("_"):
                self.take()
                low = self.script()
            elif self.is_op("^"):
                self.take()
                high = self.script() if self.is_op("{") else self.digit()
        if name == "int":
            return self.integral(low, high)
        if name == "lim":
            if not (isinstance(low, Rel) and low.ops == ("to",) and isinstance(low.terms[0], Sym)):
                raise ParseError("a limit of nothing")
            return Big("lim", low.terms[0].name, low.terms[1], None, self.expression(PRODUCT))
        if name not in {"sum", "prod"} or not isinstance(low, Rel) or low.ops != ("=",) or high is None:
            raise ParseError(f"\\{name} without bounds")
        index = low.terms[0]
        if index == Const("i"):
            index = Sym("i")
        if not isinstance(index, Sym):
            raise ParseError("a sum over something that is no variable")
        body = self.expression(PRODUCT)
        if index.name == "i":
            body = _rename_i(body)
        return Big("sum" if name == "sum" else "prod", index.name, low.terms[1], high, body)

    def integral(self, low: Node | None, high: Node | None) -> Node:
        body = self.expression(SUM)
        factors = list(body.factors) if isinstance(body, Mul) else [body]
        if len(factors) < 2 or factors[-2] != Sym("d") or not isinstance(factors[-1], Sym):
            raise ParseError("an integral without its differential")
        return Big("int", factors[-1].name, low, high, multiply(*factors[:-2]) if factors[:-2] else integer(1))


def _joined(items: list[Node], joint: str) -> Node:
    """One statement, or the list of several."""
    if not items:
        raise ParseError("nothing to read")
    if len(items) == 1:
        return items[0]
    if all(isinstance(item, Rel) and item.ops[0] not in {"="} for item in items) and joint in {"or", "and"}:
        return Logic(joint, tuple(items))
    if all(isinstance(item, Interval | SetOp) for item in items) and joint == "or":
        union = items[0]
        for item in items[1:]:
            union = SetOp("union", union, item)
        return union
    if any(isinstance(item, Num) and len(item.digits) > 1 and item.digits[0] == "0" for item in items):
        raise ParseError("a number in a list with leading zeros")
    return Seq(tuple(items), "list")


def _grouped(node: Node) -> Node:
    """Curly braces around one term in a product are brackets, not a set."""
    if isinstance(node, Seq) and node.kind == "set" and len(node.items) == 1:
        return node.items[0]
    return node


def _rows(items: list[Node]) -> Node:
    rows = []
    for item in items:
        if isinstance(item, Seq):
            rows.append(item.items)
        elif isinstance(item, Interval):
            rows.append((item.low, item.high))
    if len({len(row) for row in rows}) != 1:
        raise ParseError("a matrix with rows of different lengths")
    return Matrix(tuple(rows))


def _transpose(matrix: Matrix) -> Matrix:
    return Matrix(tuple(zip(*matrix.rows, strict=True)))


def _symbol(letter: str) -> Node:
    if letter == "e":
        return Const("e")
    if letter == "i":
        return Const("i")
    return Sym(letter)


def _rename_i(node: Node) -> Node:
    from math_verifier.parse.ast import map_children

    if node == Const("i"):
        return Sym("i")
    return map_children(node, _rename_i)


def _plain(node: Node) -> str:
    """Short text of a subscript or unit power."""
    match node:
        case Num():
            return str(node.value)
        case Sym() | Const():
            return node.name
        case Text():
            return node.value
        case Mul():
            return "".join(_plain(factor) for factor in node.factors)
        case Add():
            return "+".join(_plain(term) for term in node.terms)
        case Seq():
            return ",".join(_plain(item) for item in node.items)
    return repr(node)


def _is_separator(token: Token) -> bool:
    return token.text.lower().strip(" ,.;:") in {"and", "or"}


def _wordy(word: str) -> bool:
    return any(letter in "aeiouyAEIOUY" for letter in word) or len(word) > 4


__all__ = ["parse"]
