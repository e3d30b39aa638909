"""Math completions for tests."""

from __future__ import annotations

from typing import Any

from gristmill.messages import Completion
from support.verifiers import full_completion

HANGS = ("\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx", "\\pi")
"""Answer and reference on which SymPy works for minutes."""


def completion(ordinal: int, index: int, text: str, reference: str | None = "\\frac{1}{2}", **over: Any) -> Completion:
    """A completion with every field set."""
    return full_completion(ordinal, index, text, kind="math", reference=reference, **over)
