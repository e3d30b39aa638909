"""Words of the grammar: functions, constants, relations, phrases, dates."""

from __future__ import annotations

from typing import Final

from math_verifier.parse.ast import INFINITY, Const, Named, Node, Sym


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _pairs(text: str) -> dict[str, str]:
    """``asin=arcsin`` words to a mapping; a word alone stands for itself."""
    return {name: value or name for name, _, value in (word.partition("=") for word in text.split())}


FUNCTIONS: Final = _pairs("""
sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arcsinh arccosh arctanh
ln lg log exp gcd lcm max min det arg sgn floor ceil abs sqrt cbrt binom factorial tr
asin=arcsin acos=arccos atan=arctan arsinh=arcsinh arcosh=arccosh artanh=arctanh asinh=arcsinh acosh=arccosh
atanh=arctanh tg=tan ctg=cot cosec=csc arctg=arctan sign=sgn ceiling=ceil Re=re Im=im HCF=gcd LCM=lcm GCD=gcd Log=log
Arg=arg cis trace=tr nCr=binom nPr=perm
""")
"""Spelling to name in the tree."""
MANY: Final = _names("gcd lcm max min binom perm")
"""Functions that take a list as their arguments."""
ARITY: Final = {**dict.fromkeys(MANY, (1, 1000)), "binom": (2, 2), "perm": (2, 2), "log": (1, 2)}
"""Fewest and most arguments, where it is not one."""
INVERSES: Final = _pairs("""
sin=arcsin cos=arccos tan=arctan cot=arccot sec=arcsec csc=arccsc sinh=arcsinh cosh=arccosh tanh=arctanh
""")

CONSTANTS: Final[dict[str, Node]] = {
    **dict.fromkeys(_names("infty infinity inf oo Infinity"), INFINITY),
    **dict.fromkeys(_names("ldots dots cdots dotsc dotsb"), Const("dots")),
    **dict.fromkeys(_names("emptyset varnothing"), Named("empty")),
    **dict.fromkeys(_names("Reals reals"), Named("R")),
    "pi": Const("pi"),
    "imath": Const("i"),
    "exponentialE": Const("e"),
    "imaginaryI": Const("i"),
    "ell": Sym("l"),
    "varphi": Sym("\\phi"),
    "varepsilon": Sym("\\epsilon"),
    "vartheta": Sym("\\theta"),
}
GREEK: Final = _names("""
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi
varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega hbar
""")
RELATIONS: Final = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "=>": "=>", "!=": "!=", "<>": "!=",
    **_pairs("""
    le=<= leq=<= leqslant=<= leqq=<= ge=>= geq=>= geqslant=>= geqq=>= lt=< gt=> ne=!= neq=!= approx=~ simeq=~ doteq=~
    sim=~ in notin equiv mapsto=to to rightarrow=to subset subseteq=subset parallel perp propto
    Rightarrow==> implies==> Longrightarrow==> longrightarrow=to iff==> Leftrightarrow==>
    """),
    "cong": "=", "coloneqq": "=", "triangleq": "=", "eq": "=",
}  # fmt: skip
NUMBER_SETS: Final = frozenset("RZNQC")
MATRICES: Final = _names("""
pmatrix bmatrix matrix Bmatrix vmatrix Vmatrix smallmatrix array tabular psmallmatrix bsmallmatrix
""")
ALIGNED: Final = _names("align aligned gather gathered equation cases split eqnarray")
SKIPPED: Final = _names("mathopen mathclose rm bf it hphantom centerdot cr")
STYLES: Final = _names("""
mathbf mathrm mathit mathsf mathcal mathfrak mathscr mathbb boldsymbol bm vec hat tilde overrightarrow widehat underline
textbf textit
""")
CLOSERS: Final = _names("choose rangle rfloor rceil rvert rVert mid quad end over bmod pmod land lor wedge vee")
"""Commands that no factor starts with."""
COMMON_WORDS: Final = _names("""
no yes not one two six ten odd red all any sum day man boy dog cat ace god own now won ton eat tea ate sun mon tue wed
thu fri sat the and for blue even true none east west north south left right both zero up down is it only if
""")
"""Short words that are text and not products of letters."""
MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sep sept", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip
