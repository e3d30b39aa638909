"""Coverage-guided fuzzing of extraction, normalisation, parser and cheap comparison. Not collected by pytest.

    python tests/math_verifier/fuzz_parser.py -max_total_time=600 [CORPUS_DIR]

Needs ``atheris``. A finding is any exception but ParseError, a step that takes more than a second, or an answer that
does not equal itself. Inputs are bytes: an even first byte makes the rest UTF-8 text, an odd one indices into the
pieces of which answers are made. Findings go to ``cases.jsonl`` (tag ``fuzz``) or to ``test_properties.py``.
"""

from __future__ import annotations

import sys
import time

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

with atheris.instrument_imports(include=["math_verifier"]):
    from math_verifier.check import check, find_answer, quick, readings
    from math_verifier.config import MathPolicy
    from math_verifier.normalize import normalize, squash
    from math_verifier.parse.ast import Big, Fn, ParseError, Pow

POLICY = MathPolicy()
SECONDS = 1.0
_PIECES = r"""
\frac \dfrac \sqrt \sqrt[3] { } {} ( ) [ ] \{ \} | \| , ; : :: = < > \le \ge \in \notin + - * / ^ _ ! !! % \% \$ $
$$ ' " ` ** x y n e i j k a A B C P F f g 0 1 2 3 10 12 0.5 .5 5. 12, 345 1,234 1e5 E \pi \infty \sin \log \log_2
\ln \cup \cap \setminus \mathbb{R} \mathbb{Z} \text{ \text{and} \text{or} \text{cm} \mathrm{ cm m/s km␣h and or in
mod \pm \mp \begin{pmatrix} \end{pmatrix} \begin{cases} \end{cases} \begin{array}{cc} & \\ \\[4pt] \cr \over \choose
\sum_{k=1}^3 \sum \int_0^1 dx \,dx \lim_{x\to0} \prod \frac{d}{dx} \binom \langle \rangle \lfloor \rfloor \lvert
\rvert \left \right \left. \right. \left( \right) \bmod \equiv \pmod{3} \overline{3} 0.\overline{3} \dot{3} \ldots
... f(x) f^{-1}(x) gcd(4,6) max \mid 1/2 ½ √ ² ₂ π ∞ − ≤ ∈ ℝ ° € ₹ ， １ \to \cdot \times \div \ne \approx \boxed{
\fbox{ \boxed <answer> </answer> #### ⏎ ␣ ~ \, \! \; \quad <think> </think> <|im_end|> The␣answer␣is Answer: final
yes no five twenty-one half million integer is␣an␣integer where␣k p.m. 4:30 May January 2020-01-05 7_8 FF_{16}
base␣2 \operatorname{lcm} \text{gcd} \det ^T ^\circ ^{-1} \circ C_{5}^{2} _5C_2 x<3 [0,1) (1,2] \emptyset
all␣real␣numbers
"""
PIECES = [piece.replace("␣", " ").replace("⏎", "\n") for piece in _PIECES.split()]


def text_of(data: bytes) -> str:
    """The answer or completion that ``data`` stands for."""
    if not data or data[0] % 2 == 0:
        return data[1:].decode("utf-8", "replace")
    return "".join(PIECES[byte % len(PIECES)] for byte in data[1:])


def run(text: str) -> None:
    """One input through all that is bounded without a worker."""
    start = time.process_time()
    find_answer(text, "completion", POLICY)
    find_answer(text, "answer", POLICY)
    normal = normalize(text)
    squash(normal)
    quick(text, "3")
    quick("x+1", text)
    try:
        trees = list(readings(normal, POLICY)) if normal else []
    except ParseError:
        trees = []
    if time.process_time() - start > SECONDS:
        raise RuntimeError(f"slow: {time.process_time() - start:.1f} s")
    if trees and not any(isinstance(part, Pow | Fn | Big) for tree in trees for part in tree.walk()):
        if check(text, f" {text} ", POLICY).status != "correct":
            raise RuntimeError("an answer that does not equal itself")
        check("3", text, POLICY)
        check("(1,2)", text, POLICY)
        if time.process_time() - start > 2 * SECONDS:
            raise RuntimeError(f"slow comparison: {time.process_time() - start:.1f} s")


def test_one(data: bytes) -> None:
    """Entry point of atheris."""
    text = text_of(data)
    try:
        run(text)
    except Exception as error:
        error.add_note(repr(text))
        raise


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one)
    atheris.Fuzz()
