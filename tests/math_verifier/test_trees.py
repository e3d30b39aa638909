"""Answers drawn from the syntax tree and written as LaTeX: equal to themselves, symmetric, stable under styling."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from math_verifier.check import check, quick
from math_verifier.config import MathPolicy
from math_verifier.normalize import normalize
from math_verifier.parse.ast import (
    Add,
    Apply,
    BaseNum,
    Const,
    Fn,
    Interval,
    Logic,
    Matrix,
    Mul,
    Named,
    Node,
    Num,
    Pow,
    Quantity,
    Ratio,
    Rel,
    Seq,
    SetOp,
    Sym,
    Text,
)
from math_verifier.parse.grammar import parse

POLICY = MathPolicy()
STYLES = (
    "{}", " {} ", "${}$", "$${}$$", "\\({}\\)", "\\[{}\\]", "\\displaystyle {}", "{}.", "{{{}}}", "**{}**", "{}\\,",
)  # fmt: skip
some = settings(max_examples=70, deadline=None, suppress_health_check=list(HealthCheck))

integers = st.integers(-60, 60).map(lambda value: Num(Fraction(value)))
rationals = st.fractions(min_value=-20, max_value=20, max_denominator=12).map(Num)
decimals = st.tuples(st.integers(-400, 400), st.integers(1, 3)).map(lambda p: Num(Fraction(p[0], 10 ** p[1]), p[1]))
symbols = st.sampled_from("xyabnt").map(Sym)
atoms = st.one_of(integers, rationals, decimals, symbols, st.just(Const("pi")), st.just(Const("e")))


def _grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(Add),
        pair.map(Mul),
        st.tuples(inner, st.sampled_from((-1, 2, 3))).map(lambda p: Pow(p[0], Num(Fraction(p[1])))),
        inner.map(lambda node: Pow(node, Num(Fraction(1, 2)))),
        st.tuples(st.sampled_from(("sin", "cos", "ln", "exp", "abs", "floor")), inner).map(lambda p: Fn(p[0], (p[1],))),
        inner.map(lambda node: Apply("f", (node,))),
    )


expressions: st.SearchStrategy[Node] = st.recursive(atoms, _grown, max_leaves=5)
constants = st.one_of(integers, rationals, st.just(Pow(Num(Fraction(2)), Num(Fraction(1, 2)))))
few = st.lists(expressions, min_size=2, max_size=3).map(tuple)


def _interval(parts: tuple[Node, Node, bool, bool]) -> Interval:
    return Interval(*parts)


intervals = st.tuples(integers, integers, st.booleans(), st.booleans()).map(_interval)
statements = st.one_of(
    st.tuples(symbols, st.sampled_from(("=", "<", "<=", ">", ">=", "!=")), expressions).map(
        lambda p: Rel((p[1],), (p[0], p[2]))
    ),
    st.tuples(constants, symbols, constants).map(lambda p: Rel(("<", "<="), p)),
)
answers: st.SearchStrategy[Node] = st.one_of(
    expressions,
    few.map(lambda items: Seq(items, "list")),
    few.map(lambda items: Seq(items, "tuple")),
    few.map(lambda items: Seq(items, "set")),
    intervals,
    st.tuples(intervals, intervals).map(lambda p: SetOp("union", *p)),
    st.sampled_from(("R", "Z", "N")).map(Named),
    st.just(Named("empty")),
    st.tuples(few, few).filter(lambda p: len(p[0]) == len(p[1])).map(Matrix),
    statements,
    st.tuples(st.sampled_from(("and", "or")), st.tuples(statements, statements)).map(lambda p: Logic(*p)),
    st.tuples(integers, st.sampled_from(("cm", "hours", "dollars", "m^2"))).map(lambda p: Quantity(*p)),
    integers.map(lambda node: Fn("pct", (node,))),
    integers.map(lambda node: Fn("deg", (node,))),
    st.tuples(expressions, expressions).map(lambda p: Fn("pm", p)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda p: Ratio(tuple(Num(Fraction(v)) for v in p))),
    st.sampled_from(("101", "11", "1101")).map(lambda digits: BaseNum(digits, 2)),
    st.sampled_from(("east", "yes", "blue", "odd")).map(Text),
)


def write(node: Node) -> str:
    """LaTeX of ``node``; brackets wherever they might be needed."""
    match node:
        case Num():
            return _number(node)
        case Sym():
            return node.name
        case Const():
            return f"\\{node.name}" if node.name == "pi" else node.name
        case Add():
            return " + ".join(f"({write(term)})" for term in node.terms)
        case Mul():
            return " \\cdot ".join(f"({write(factor)})" for factor in node.factors)
        case Pow():
            if node.exp == Num(Fraction(1, 2)):
                return f"\\sqrt{{{write(node.base)}}}"
            return f"({write(node.base)})^{{{write(node.exp)}}}"
        case Fn(name="abs"):
            return f"\\left|{write(node.args[0])}\\right|"
        case Fn(name="floor"):
            return f"\\lfloor {write(node.args[0])} \\rfloor"
        case Fn(name="pct"):
            return f"{write(node.args[0])}\\%"
        case Fn(name="deg"):
            return f"{write(node.args[0])}^\\circ"
        case Fn(name="pm"):
            return f"({write(node.args[0])}) \\pm ({write(node.args[1])})"
        case Fn():
            return f"\\{node.name}({', '.join(map(write, node.args))})"
        case Apply():
            return f"{node.name}({', '.join(map(write, node.args))})"
        case Seq():
            opening, closing = {"list": ("", ""), "tuple": ("(", ")"), "set": ("\\{", "\\}")}[node.kind]
            return opening + ", ".join(map(write, node.items)) + closing
        case Interval():
            brackets = "(" if node.low_open else "[", ")" if node.high_open else "]"
            return f"{brackets[0]}{write(node.low)}, {write(node.high)}{brackets[1]}"
        case SetOp():
            return f"{write(node.left)} \\cup {write(node.right)}"
        case Named():
            return "\\emptyset" if node.name == "empty" else f"\\mathbb{{{node.name}}}"
        case Matrix():
            return (
                "\\begin{pmatrix}" + " \\\\ ".join(" & ".join(map(write, row)) for row in node.rows) + "\\end{pmatrix}"
            )
        case Rel():
            names = {"<=": "\\le ", ">=": "\\ge ", "!=": "\\ne "}
            words = [write(node.terms[0])]
            for op, term in zip(node.ops, node.terms[1:], strict=True):
                words += [names.get(op, op), write(term)]
            return " ".join(words)
        case Logic():
            return f" \\text{{ {node.op} }} ".join(map(write, node.items))
        case Quantity():
            return f"{write(node.value)} \\text{{ {node.unit} }}"
        case Ratio():
            return ":".join(map(write, node.items))
        case BaseNum():
            return f"{node.digits}_{{{node.base}}}"
        case Text():
            return f"\\text{{{node.value}}}"
    raise TypeError(type(node).__name__)


def _number(node: Num) -> str:
    value = node.value
    if node.places:
        scaled = abs(value.numerator * 10**node.places // value.denominator)
        text = f"{scaled:0{node.places + 1}d}"
        return ("-" if value < 0 else "") + text[: -node.places] + "." + text[-node.places :]
    if value.denominator == 1:
        return str(value.numerator)
    return ("-" if value < 0 else "") + f"\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def swapped(node: Node) -> Node:
    """The same value with the terms of sums and the factors of products turned round."""
    if isinstance(node, Add):
        return Add(tuple(map(swapped, node.terms[::-1])))
    if isinstance(node, Mul):
        return Mul(tuple(map(swapped, node.factors[::-1])))
    if isinstance(node, Pow):
        return Pow(swapped(node.base), node.exp)
    if isinstance(node, Fn):
        return Fn(node.name, tuple(map(swapped, node.args)))
    return node


def verdict(gold: str, answer: str) -> str:
    return (quick(gold, answer) or check(gold, answer, POLICY)).status


@some
@given(answers)
def test_what_is_written_can_be_read(node: Node) -> None:
    parse(normalize(write(node)))


@some
@given(answers, st.sampled_from(STYLES))
def test_an_answer_equals_itself_in_any_style(node: Node, style: str) -> None:
    answer = write(node)
    wide = answer.replace(" ", "  ").replace("(", "\\left( ").replace(")", " \\right)")
    for other in (answer, style.format(answer), wide, style.format(wide)):
        assert verdict(answer, other) == "correct", other
        assert verdict(other, answer) == "correct", other


@some
@given(expressions)
def test_terms_and_factors_may_be_exchanged(node: Node) -> None:
    assert verdict(write(node), write(swapped(node))) == "correct"


@some
@given(answers, answers)
def test_comparison_is_symmetric(one: Node, two: Node) -> None:
    left, right = write(one), write(two)
    assert (verdict(left, right) == "correct") == (verdict(right, left) == "correct")


@some
@given(st.lists(expressions, min_size=2, max_size=4))
def test_lists_and_sets_have_no_order(nodes: list[Node]) -> None:
    items = [write(node) for node in nodes]
    turned = items[1:] + items[:1]
    assert verdict(", ".join(items), ", ".join(turned)) == "correct"
    assert verdict("\\{" + ", ".join(items) + "\\}", "\\{" + ", ".join(turned) + "\\}") == "correct"


@some
@given(answers, st.integers(1, 9))
def test_a_shifted_number_in_an_answer_is_another_answer(node: Node, shift: int) -> None:
    """``(expr) + shift`` in place of one expression."""
    if isinstance(node, Seq) and node.kind == "tuple":
        first = Add((node.items[0], Num(Fraction(shift))))
        assert verdict(write(node), write(Seq((first, *node.items[1:]), "tuple"))) != "correct"
    if isinstance(node, Interval):
        other = Interval(Num(node.low.value - shift), node.high, node.low_open, node.high_open)  # type: ignore[attr-defined]
        assert verdict(write(node), write(other)) != "correct"
