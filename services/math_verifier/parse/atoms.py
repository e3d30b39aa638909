r"""The inner half of the grammar: numbers, symbols, brackets, commands, functions, environments."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from math_verifier.parse import units
from math_verifier.parse import vocabulary as voc
from math_verifier.parse.ast import (
    HALF,
    MINUS_ONE,
    Add,
    Apply,
    BaseNum,
    Big,
    Const,
    Fn,
    Interval,
    Matrix,
    Mul,
    Named,
    Node,
    Num,
    ParseError,
    Pow,
    Quantity,
    Rel,
    Seq,
    SetBuilder,
    Sym,
    Text,
    add,
    divide,
    integer,
    multiply,
    negate,
)
from math_verifier.parse.cursor import IMPLICIT, PRODUCT, RELATION, SUM, Cursor
from math_verifier.parse.shapes import joined, one_sided, plain, rename_i, rows, symbol, wordy
from math_verifier.parse.tokens import Token
from math_verifier.parse.words import words

_OPENERS: Final = frozenset(("(", "[", "\\{"))
_FUNCTION_LETTERS: Final = frozenset("fghFGH")
_PAIRS: Final = {
    "lfloor": ("rfloor", "floor"),
    "lceil": ("rceil", "ceil"),
    "lvert": ("rvert", "abs"),
    "lVert": ("rVert", "abs"),
}


class Atoms(Cursor):
    """Reads what stands between operators."""

    def script(self) -> Node:
        """What follows ``^`` or ``_``: a group, a signed atom, one digit, one letter."""
        if self.is_op("{"):
            if self.peek().text in {"+", "-"} and self.peek(2).text == "}":
                self.at += 3
                return Sym(self.peek(-2).text)
            return self.group()
        if self.is_op("-", "+") and self.peek().text in {"}", ")"}:
            return Sym(self.take().text)
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
        if token.kind == "cmd" and token.text in voc.FUNCTIONS and token.text not in {"sqrt", "binom"}:
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
        return symbol(token.text[0])

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

    def inches_here(self) -> bool:
        """Whether ``in`` is the unit: nothing or a power follows it."""
        return self.peek().kind == "eof" or self.peek().text == "^"

    def unit_here(self, left: Node) -> bool:
        """Whether the word at hand is a unit of ``left`` and not letters to multiply with."""
        word = self.now.text
        if word == "in":
            return self.inches_here()
        if word == "min":
            return isinstance(left, Num) and self.peek().text not in {"(", "{", "\\{", "_"}
        if isinstance(left, Seq | Interval | Rel | Text) or word in {"and", "or", "mod", "U", "choose"}:
            return False
        if len(word) == 1:
            return False
        if word in voc.FUNCTIONS or word in voc.CONSTANTS:
            return False
        numeric = not any(isinstance(node, Sym) for node in left.walk())
        return numeric and (
            units.unit_of(word) is not None
            or word.lower() in units.COUNTED
            or (self.now.spaced and len(word) > 2 and wordy(word))
        )

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
                return self.labelled(words(token.text))
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
        if text in units.CURRENCY_SIGNS:
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
        state, self.bars, self.givens = (self.bars, self.givens), 0, False
        items, joint = self.items(("}",))
        self.bars, self.givens = state
        self.expect("}")
        if not items:
            raise ParseError("an empty group")
        return joined(items, joint)

    def bracket(self, opener: str) -> Node:
        state, self.bars, self.givens = (self.bars, self.givens), 0, True
        ratios, self.ratios = self.ratios, opener != "\\{"
        if opener == "(" and self.is_cmd("text"):
            self.take()
        items, joint = self.items((")", "]", "\\}"))
        if opener == "\\{" and (self.is_op("|", ":") or self.is_cmd("mid")):
            self.take()
            conditions, how = self.items(("\\}",))
            self.expect("\\}")
            (self.bars, self.givens), self.ratios = state, ratios
            return SetBuilder(joined(items, joint), joined(conditions, how))
        if opener == "(" and len(items) == 1 and (self.is_op("|") or self.is_cmd("mid")):
            self.take()
            given, how = self.items((")",))
            items = [Apply("|", (items[0], joined(given, how)))]
        (self.bars, self.givens), self.ratios = state, ratios
        closer = self.take()
        if closer.kind != "op" or closer.text not in {")", "]", "\\}"}:
            raise ParseError(f"{opener!r} is never closed")
        if opener == "\\{":
            if closer.text != "\\}":
                raise ParseError("a set closed by another bracket")
            return Seq(tuple(items), "set") if items else Named("empty")
        if closer.text == "\\}" or not items:
            raise ParseError("brackets do not match")
        if len(items) == 2 and opener == "[" and all(isinstance(item, Interval) for item in items):
            return rows(items)
        if len(items) == 2 and (opener, closer.text) != ("(", ")"):
            return Interval(items[0], items[1], opener == "(", closer.text == ")")
        if opener == "(" and closer.text == ")":
            return items[0] if len(items) == 1 else Seq(tuple(items), "tuple")
        if len(items) == 1 and (opener, closer.text) == ("[", "]"):
            return items[0]
        if opener == "[" and closer.text == "]":
            if all((isinstance(item, Seq) and item.kind == "bracket") or isinstance(item, Interval) for item in items):
                return rows(items)
            return Seq(tuple(items), "bracket")
        raise ParseError("brackets do not match")

    def environment(self) -> Node:
        name = self.take().text.rstrip("*")
        if name in voc.ALIGNED:
            items, joint = self.items(())
            self.end(name)
            return joined(items, joint)
        if name not in voc.MATRICES:
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
        if text in _FUNCTION_LETTERS and self.inverse_ahead():
            self.at += 5
            return self.application(f"{text}^-1")
        if text in {"C", "P"} and self.is_op("(") and self.peek().kind == "num" and self.peek(2).text == ",":
            self.take()
            items, _ = self.items((")",))
            self.expect(")")
            if len(items) != 2:
                raise ParseError(f"{text} of {len(items)} arguments")
            return Fn("binom" if text == "C" else "perm", tuple(items))
        return symbol(text)

    def inverse_ahead(self) -> bool:
        """Whether ``^{-1}(`` follows."""
        return [self.peek(ahead).text for ahead in range(6)] == ["^", "{", "-", "1", "}", "("]

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
        if name in units.CURRENCY_COMMANDS:
            return self.money(units.CURRENCY_COMMANDS[name])
        if name in _PAIRS:
            closer, function = _PAIRS[name]
            inner = self.expression(RELATION + 1)
            if not self.is_cmd(closer):
                raise ParseError(f"\\{name} is never closed")
            self.take()
            return Fn(function, (inner,))
        match name:
            case "frac":
                derivative = self.derivative()
                if derivative is not None:
                    return derivative
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
                if isinstance(inner, Mul) and all(isinstance(part, Sym) for part in inner.factors):
                    return Sym("overline " + plain(inner))
                return Fn("conj", (inner,))
            case "angle" | "triangle" | "measuredangle" | "arc" | "widearc":
                inner = self.expression(IMPLICIT)
                return Sym(f"{name} {plain(inner)}")
            case "nabla" | "partial" | "square" | "star" | "bullet" | "top" | "checkmark":
                return Sym("\\" + name)
            case "not":
                raise ParseError("a negated symbol that is no relation")
        if name in voc.STYLES:
            return self.argument()
        if name in voc.SKIPPED:
            return self.atom()
        raise ParseError(f"command \\{name} is not known")

    def number_set(self, letter: str) -> Node:
        if not self.is_op("^", "_"):
            return Named(letter)
        braced = self.peek().text == "{"
        sign = self.peek(2 if braced else 1).text
        if sign == ">" and self.peek(3).text == "0":
            sign, count = "+", 5
        elif sign in {"+", "-", "*", "n"}:
            count = 4 if braced else 2
        elif sign in {"star", "ast", "times"}:
            sign, count = "*", 4 if braced else 2
        else:
            return Named(letter)
        self.at += count
        return Named(letter + sign)

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
        if (
            name == "log"
            and base is None
            and self.now.kind == "num"
            and not self.now.spaced
            and self.peek().text == "("
        ):
            base = self.tight()
        if power == MINUS_ONE and name in voc.INVERSES:
            name, power = voc.INVERSES[name], None
        if name in {"max", "min"} and base is None and (self.at_end() or self.is_op("}", "=", ")")):
            return Sym(name)
        args = self.function_arguments()
        low, high = voc.ARITY.get(name, (1, 1))
        if name in voc.MANY and len(args) == 1 and isinstance(args[0], Seq):
            args = args[0].items
        if not low <= len(args) <= high:
            raise ParseError(f"{name} of {len(args)} arguments")
        if name == "sqrt":
            result: Node = Pow(args[0], HALF)
        elif name == "cis":
            result = add(Fn("cos", args), multiply(Const("i"), Fn("sin", args)))
        elif name == "cbrt":
            result = Fn("root", (args[0], integer(3)))
        elif name == "log":
            result = Fn("log", (args[0], base)) if base is not None else Fn("log", args)
        else:
            result = Fn(name, args)
        return Pow(result, power) if power is not None else result

    def function_arguments(self) -> tuple[Node, ...]:
        """Arguments in brackets, or the product that follows: ``\\sin 2x``."""
        if self.accept("("):
            state, self.bars, self.givens = (self.bars, self.givens), 0, False
            items, _ = self.items((")",))
            self.bars, self.givens = state
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
            return (
                token.text in voc.FUNCTIONS
                or token.text == "d"
                or (self.integrals > 0 and len(token.text) == 2 and token.text[0] == "d")
            )
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
            if not (isinstance(low, Rel) and low.ops in {("to",), ("=>",)} and isinstance(low.terms[0], Sym)):
                raise ParseError("a limit of nothing")
            point, side = one_sided(low.terms[1])
            return Big("lim", low.terms[0].name, point, side, self.expression(PRODUCT))
        if name not in {"sum", "prod"} or not isinstance(low, Rel) or low.ops != ("=",) or high is None:
            raise ParseError(f"\\{name} without bounds")
        index = low.terms[0]
        if index == Const("i"):
            index = Sym("i")
        if not isinstance(index, Sym):
            raise ParseError("a sum over something that is no variable")
        body = self.expression(PRODUCT)
        if index.name == "i":
            body = rename_i(body)
        return Big("sum" if name == "sum" else "prod", index.name, low.terms[1], high, body)

    def integral(self, low: Node | None, high: Node | None) -> Node:
        """All terms up to the one that holds the differential belong to the integrand; what follows is added."""
        self.integrals += 1
        body = self.expression(SUM)
        self.integrals -= 1
        terms = list(body.terms) if isinstance(body, Add) else [body]
        for count, term in enumerate(terms, start=1):
            factors = list(term.factors) if isinstance(term, Mul) else [term]
            for place in range(len(factors) - 1):
                name = factors[place + 1]
                if factors[place] == Sym("d") and isinstance(name, Sym):
                    rest = factors[:place] + factors[place + 2 :]
                    last = multiply(*rest) if rest else integer(1)
                    inner = Big("int", name.name, low, high, add(*terms[: count - 1], last))
                    return add(inner, *terms[count:])
        raise ParseError("an integral without its differential")

    def derivative(self) -> Node | None:
        r"""``\frac{d}{dx}`` of what follows, or ``\frac{dy}{dx}`` as a name; None when it is neither."""
        texts = [self.peek(ahead).text for ahead in range(7)]
        sign = texts[1][:1] if texts[1] != "partial" else "partial"
        if texts[0] != "{" or sign not in {"d", "partial"}:
            return None
        if texts[1] in {"d", "partial"} and texts[2] == "}" and texts[3] == "{" and texts[4][: len(sign)] == sign:
            name = texts[4][1:] if sign == "d" and len(texts[4]) == 2 and texts[4][0] == "d" else texts[5]
            closed = texts[5] if name == texts[4][1:] else texts[6]
            if len(name) != 1 or not name.isalpha() or closed != "}":
                return None
            self.at += 6 if closed is texts[5] else 7
            return Big("diff", name, None, None, self.expression(PRODUCT))
        if len(texts[1]) == 2 and texts[2:4] == ["}", "{"] and len(texts[4]) == 2 and texts[4][0] == "d":
            if texts[5] != "}":
                return None
            self.at += 6
            return Sym(f"{texts[1]}/{texts[4]}")
        return None
