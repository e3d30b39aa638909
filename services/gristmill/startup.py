"""Quick starts: large libraries are imported while the garbage collector rests."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_was_enabled = False


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import large libraries in here; nothing else, for a moment's garbage is kept for good.

    What torch, transformers and TRL make when they are imported, a million objects and more, lives as long as the
    process. The collector would go through all of it dozens of times while it grows, and once more at exit: a third of
    the time that the trainer takes to start. So it rests meanwhile, and does not look at these objects afterwards.
    """
    global _inside, _was_enabled
    with _lock:
        if _inside == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    modules = len(sys.modules)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if len(sys.modules) > modules:
                gc.freeze()
            if _inside == 0 and _was_enabled:
                gc.enable()
