"""Files that commands write: they appear under their name when they are complete, and nothing is left otherwise."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from gristmill.errors import BadInput


@contextmanager
def complete_file(target: Path) -> Iterator[TextIO]:
    """A text file beside ``target``, which replaces it at the end of the block; removed when the block does not end,
    also by SIGTERM. Half a surrogate pair is written as an escape.

    Raises:
        BadInput: a file cannot be opened, read or written, here or in the block.
    """
    partial = target.with_name(target.name + ".part")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        if target.is_dir():
            raise BadInput(f"{target}: is a directory; name the file that is to be written")
        with partial.open("w", encoding="utf-8", errors="backslashreplace") as out:
            yield out
        partial.replace(target)
    except OSError as error:
        raise BadInput(f"{error.filename or target}: {error.strerror or error}") from error
    finally:
        if partial.is_file():
            partial.unlink()
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
