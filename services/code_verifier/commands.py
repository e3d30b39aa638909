"""``gristmill verify code``: the verifier without the line."""

from __future__ import annotations


def verify_code() -> None:
    """Run programs in a file against their tests."""
    raise NotImplementedError
