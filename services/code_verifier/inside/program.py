"""The child that is the program: source as ``__main__``, real standard streams, its input in a file.

It leaves by the interpreter's own door (see :mod:`.supervisor`), so that ``atexit``, threads and buffers end as usual.
On its channel it says why it failed, for a clear reason; a program that passes says nothing.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
import traceback
import types

from . import frames, values
from .candidate import compiled, failure


def main(channel: frames.Channel) -> int:
    """Run the program; the exit code."""
    _, payload = channel.receive()
    body = values.loads(payload)
    source, text = body["source"], body["input"]
    _standard_input(text.encode("utf-8", "surrogatepass"))
    filename = "program.py"
    try:
        code = compiled(source, filename)
    except SyntaxError as error:
        traceback.print_exception(type(error), error, None)
        return _failed(channel, "syntax_error", "".join(traceback.format_exception_only(error)).strip()[-2000:])
    space = types.ModuleType("__main__")
    space.__file__ = filename
    vars(space)["__builtins__"] = builtins
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules["__main__"] = space
    sys.argv = [filename]
    del body, payload, source, text
    try:
        exec(code, vars(space))  # noqa: S102
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        here = error.__traceback__
        error.__traceback__ = here and here.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        return _failed(channel, *failure(error))
    return 0


def _failed(channel: frames.Channel, status: str, reason: str) -> int:
    try:
        channel.send(frames.FAILED, values.dumps([status, reason]))
    except OSError:
        return 1
    return 1


def _standard_input(data: bytes) -> None:
    # A file, as under a shell's "<", without a name.
    fd = os.open(".input", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(".input")  # noqa: PTH108
    frames.write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)
