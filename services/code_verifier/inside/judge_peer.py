"""The tests' side of the calls: what it believes of what the candidate says, and what it lets the candidate do.

What the candidate sends is decoded strictly; anything odd ends the tests with a runtime error that nothing can change.
What the tests pass and is not plain can be called or iterated by the candidate; attributes are read and set only of
instances of the tests' own classes, for those of functions, generators and modules lead to the tests and their expected
values.
"""

from __future__ import annotations

import builtins
import io
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from . import frames, values
from .attached import attached, bare, changes, kind_of, same_number
from .decoding import Decoder
from .encoding import Encoder, Writer
from .mirrors import FromCandidate, builtin, derive, library, mirror, mirrored, raisable
from .peer import MISSING, SEVERAL, SHARED, SHARED_SIZE, TAMPERED, Peer, ProtocolError
from .remote import Remote, RemoteCoroutine, named_class, stands_in
from .shown import shown
from .surroundings import Surroundings, carried
from .values import SCALARS, TYPES, Json, Malformed

_OPEN = (io.StringIO, io.BytesIO, types.SimpleNamespace)
_UNWIELDY_SIZE, _UNWIELDY_DEPTH = 1 << 20, 100
FORESEEN_BYTES = 1 << 18


class Refused(TypeError):
    """The program asked for what it must not have."""


class Stop(BaseException):
    """Ends the tests: what was found stands already in :attr:`JudgePeer.found`."""


class JudgePeer(Peer):
    """The tests' side.

    Attributes:
        found: status and reason that stand whatever the tests do next.
        heard: whether the candidate has supplied anything.
        calls: how often it was asked.
        missing: names that it does not define.
        modules: names of the modules that the tests import: where the program means one, the judge's is taken.
        unwieldy: whether it supplied something so deep or large that passing it on may fail.
    """

    def __init__(self, channel: frames.Channel, module: str) -> None:
        super().__init__(channel)
        self._module = module
        self._remotes: dict[int, Remote] = {}
        self._classes: dict[int, type[BaseException]] = {}
        self._shared: dict[int, tuple[object, list[Any] | bytes]] = {}
        self._attached: dict[int, Any] = {}
        self._kinds: dict[tuple[type, int], type] = {}
        self.found: tuple[str, str] | None = None
        self.heard = False
        self.calls = 0
        self.missing: set[str] = set()
        self.modules: frozenset[str] = frozenset()
        self.unwieldy = False
        self.around = Surroundings()
        self._heard_bytes = 0
        self._errors: dict[int, BaseException] = {}
        self._own_errors: dict[int, BaseException] = {}
        self._errors_seen = 0
        self._ahead: deque[tuple[bytes, Json]] = deque()
        self._opening: list[bytes] = []

    def open(self, name: str, calls: list[tuple[object, ...]]) -> None:
        """Make the first request of all: what ``name`` is, and, if it is a function, such calls of it. :meth:`opened`
        gets the answer, :meth:`foreseen` gives it out."""
        self._opening = [values.dumps(self.encoder().encode(("name", name)))]
        calling = self._calling(Remote(self, 0, "function"), calls)
        if sum(map(len, calling)) <= FORESEEN_BYTES:
            self._opening += calling
        self._channel.hold(frames.OPENING, _together(self._opening))

    def opened(self) -> None:
        """Wait for the answer."""
        self._look_ahead(self._opening, self._awaited)

    def foresee(self, function: Remote, calls: list[tuple[object, ...]]) -> None:
        """Have calls done that the tests are about to make, in this order; :meth:`foreseen` gives the answers out.

        The candidate answers as many as it likes. What it says is looked at when the tests make the call, as ever.
        """
        if self.found is not None or self._shared or self._ahead or self.around.changed:
            return
        requests = self._calling(function, calls)
        if sum(map(len, requests)) <= FORESEEN_BYTES:
            self.heard = True
            self._look_ahead(requests, lambda: self._exchange(_together(requests)))

    def _calling(self, function: Remote, calls: list[tuple[object, ...]]) -> list[bytes]:
        return [values.dumps(self.encoder().encode(("call", function, arguments, {}))) for arguments in calls]

    def _look_ahead(self, requests: list[bytes], answer: Callable[[], bytes]) -> None:
        try:
            payload = answer()
            answers = values.loads(payload)
            if type(answers) is not list or not 0 < len(answers) <= len(requests) or None in answers:
                raise Malformed("answers")
            self.received(len(payload), 0)
        except (Malformed, ProtocolError) as error:
            self.end("runtime_error", f"the program's side broke the protocol: {error}")
        except frames.Closed:
            self.end("runtime_error", "the program's side is gone")
        self._ahead.extend(zip(requests, answers, strict=False))

    def foreseen(self, operation: str, data: bytes) -> Json | None:
        if not self._ahead or operation not in {"call", "name"}:
            return None
        request, answer = self._ahead[0]
        if request == data:
            self._ahead.popleft()
            return answer
        if operation == "call":
            self._ahead.clear()
        return None

    def end(self, status: str, reason: str) -> NoReturn:
        """End the tests with a status that nothing can change."""
        if self.found is None:
            self.found = (status, reason)
        raise Stop

    def request(self, operation: str, *operands: object) -> Any:
        if self.found is not None:
            raise Stop
        self.calls += 1
        try:
            for number, (value, before) in list(self._shared.items()):
                if not values.same_contents(before, value):
                    self._shared[number] = (value, values.holding(value))
                    super().request("update", Remote(self, number, "object"), bare(value))
            result = carried(self.around, super().request, operation, operands)
        except (Malformed, ProtocolError) as error:
            self.end("runtime_error", f"the program's side broke the protocol: {error}")
        except frames.Closed:
            self.end("runtime_error", "the program's side is gone")
        finally:
            self.heard = True
            if not self._nested:
                self._own_errors.clear()
        return result

    def shared(self, number: Json, value: object) -> object:
        # The tests get the same object each time, with the contents that it has now; what they change in it is sent
        # along before the next request.
        if type(number) is not int or not values.is_mutable(value):
            raise Malformed("a shared container")
        held = self._shared.pop(number, (None, b""))[0]
        if type(held) is type(value):
            values.replace(held, values.flat(value))
            value = held
        self._watch(number, value)
        return value

    def _watch(self, number: int, value: object) -> None:
        held = values.holding(value)
        self._shared.pop(number, None)
        if len(held) <= SHARED_SIZE:
            self._shared[number] = (value, held)
            if len(self._shared) > SHARED:
                del self._shared[next(iter(self._shared))]

    def attach(self, described: list[Json], plain: Any) -> object:
        match described:
            case [int(ref), list(names), int(number), str(name)] if ref >= 0 and number >= 0:
                pass
            case _:
                raise Malformed("a subclass")
        if not all(type(name) is str and not name.startswith("_gristmill") for name in names):
            raise Malformed("a subclass")
        found = self._attached.get(ref)
        if found is not None and same_number(found, plain):
            return found
        if found is not None and changes(found, plain):
            values.replace(found, values.flat(plain))
        else:
            found = self._attached[ref] = attached(
                self, ref, names, self._kind(kind_of(type(plain)), number, name), plain
            )
        if values.is_mutable(found):
            self._watch(ref, found)
        return found

    def _kind(self, base: type, number: int, name: str) -> Any:
        made = self._kinds.get((base, number))
        if made is None:
            made = self._kinds[base, number] = named_class(base, number, name)
        return made

    def refresh(self, ref: Json, row: list[object]) -> None:
        found = self._attached.get(ref) if type(ref) is int else None
        if found is not None and values.is_mutable(found):
            values.replace(found, row)
            self._watch(ref, found)

    def export_derived(self, encoder: Encoder, value: object, writer: Writer) -> Json:
        return self.export(value) if stands_in(value) else writer(encoder, value)

    def _awaited(self) -> bytes:
        payload = super()._awaited()
        # All together, and what is small here and large when it is looked at.
        self._heard_bytes += len(payload)
        self.unwieldy = self.unwieldy or self._heard_bytes > _UNWIELDY_SIZE or b'["g",' in payload
        return payload

    def received(self, size: int, depth: int) -> None:
        self.unwieldy = self.unwieldy or size > _UNWIELDY_SIZE or depth > _UNWIELDY_DEPTH

    def look_up(self, names: Iterable[str], space: dict[str, Any]) -> None:
        """Bring names of the candidate into a namespace; it does not count as a use of the program."""
        before = self.calls, self.heard
        for name in names:
            if name not in space:
                try:
                    space[name] = space[name]
                except KeyError:
                    continue
        self.calls, self.heard = before

    def name(self, name: str) -> Any:
        """What the candidate's module calls ``name``; raises :class:`KeyError`."""
        try:
            return self.request("name", name)
        except NameError as error:
            if isinstance(error, FromCandidate):
                self.missing.add(name)
                raise KeyError(name) from None
            raise

    def export(self, value: object) -> Json:
        kind = type(value)
        if stands_in(value):
            return ["w", object.__getattribute__(value, "_gristmill_ref")]
        if issubclass(kind, FromCandidate) and value._gristmill_error is not None:  # type: ignore[attr-defined]
            return self.export(value._gristmill_error)  # type: ignore[attr-defined]
        if issubclass(kind, type) and issubclass(value, FromCandidate):  # type: ignore[arg-type]
            stood_for = mirrored(value)  # type: ignore[arg-type]
            if stood_for is not None:
                return _library_name(stood_for)
            for ref, known in self._classes.items():
                if known is value:
                    return ["w", ref]
        found = _library_name(value)
        return found or ["o", self.number(value), *shown(value, self._is_instance)]

    def resolve(self, value: list[Any]) -> object:
        match value:
            case ["w", number]:
                return self.owned(number)
            case ["o", int(ref), str(kind)]:
                found = self._remotes.get(ref)
                if found is None:
                    make = RemoteCoroutine if kind == "coroutine" else Remote
                    found = self._remotes[ref] = make(self, ref, kind)
                return found
            case ["o", int(ref), ("object" | "valued") as kind, int(number), str(name)] if number >= 0:
                found = self._remotes.get(ref)
                if found is None:
                    found = self._remotes[ref] = self._kind(Remote, number, name)(self, ref, kind)
                return found
            case ["x", described]:
                return self._exception_class(described)
            case ["X", int(ref), described, text, list(shown)]:
                return self._exception(ref, described, text, shown)
            case ["p", str(module), int(ref)]:
                # Nothing is imported for the program's sake, and a module that the tests do not use is no module here:
                # they would set its attributes, or call its functions, in the program's object's place.
                own = sys.modules.get(module) if module in self.modules else None
                return own if own is not None else self.resolve(["o", ref, "object"])
        raise Malformed("an unknown kind of value")

    def _exception(self, ref: int, described: Json, text: Json, shown: list[Json]) -> BaseException:
        """One that the program passes on as a value, and does not raise."""
        error = self._errors.get(ref)
        if error is None:
            kind, decoder = self._exception_class(described), Decoder(self.resolve)
            said, args = decoder.decode(text), tuple(map(decoder.decode, shown))
            if not issubclass(kind, Exception) or type(said) is not str or any(type(a) not in SCALARS for a in args):
                raise Malformed("an exception")
            error = self._errors[ref] = raisable(kind, said, args, self.resolve(["o", ref, "object"]), "", [])
        return error

    def _exception_class(self, described: Json, depth: int = 0) -> type[BaseException]:
        if type(described) is str:
            kind = builtin(described)
            if kind is None:
                raise Malformed("no such exception")
            return mirror(kind)
        match described:
            case [int(ref), str(name), list(bases), str(module)] if depth < 20 and len(bases) < 20:
                known = self._classes.get(ref)
                own = library(module, name)
                if known is None and own is not None:
                    known = self._classes[ref] = mirror(own)
                if known is None:
                    known = self._classes[ref] = derive(
                        name, [self._exception_class(base, depth + 1) for base in bases] or [mirror(Exception)]
                    )
                return known
        raise Malformed("an exception class")

    def restore(self, decoder: Decoder, described: Json) -> BaseException:
        return self._restore(decoder, described, 0)

    def _restore(self, decoder: Decoder, described: Json, depth: int) -> BaseException:
        match described:
            case [_, int(), _, _, str(), list(), int(number)] if number in self._own_errors:
                # One that a callback raised during this call, and that the program let through.
                return self._own_errors[number]
            case [kind_json, int(ref), text_json, args_json, str(where), list(parts_json), *_] if depth < 20:
                pass
            case _:
                raise Malformed("an exception")
        base = self._exception_class(kind_json)
        text, args = decoder.decode(text_json), decoder.decode(args_json)
        if type(text) is not str or type(args) is not tuple:
            raise Malformed("an exception")
        name = described[0] if type(kind_json) is str else kind_json[1]
        remote = self.resolve(["o", ref, "object"])
        if name == MISSING:
            return raisable(mirror(NameError), f"name {text!r} is not defined", args, remote, "", [])
        if name == TAMPERED:
            self.end("runtime_error", f"tampered: {text}")
        if not issubclass(base, Exception):  # SystemExit, KeyboardInterrupt: it must not end the judge
            self.end("runtime_error", f"{name}: {text}"[:2000])
        if name in {"StopIteration", "StopAsyncIteration"}:
            text = f"{name}: {text}"
        parts = [self._restore(decoder, part, depth + 1) for part in parts_json]
        return raisable(base, text, args, remote, where, parts)

    def describe(self, _encoder: Encoder, error: BaseException) -> Json:
        if isinstance(error, FromCandidate) and error._gristmill_error is not None:
            return [None, self.export(error._gristmill_error)[1]]  # its own, back again
        name = next((k.__name__ for k in type(error).__mro__ if vars(builtins).get(k.__name__) is k), "Exception")
        if not isinstance(error, Exception) or isinstance(error, (AssertionError, Refused)):
            return [name, str(error)[:1000], None]
        number = self._errors_seen = self._errors_seen + 1
        self._own_errors[number] = error
        return [name, str(error)[:1000], number]

    def perform(self, operation: str, operands: tuple[Any, ...]) -> object:
        try:
            return self._do(operation, operands)
        except Stop:
            raise
        except AssertionError as error:
            if not isinstance(error, FromCandidate):
                # The candidate would get it, and could swallow it.
                self.end("wrong_answer", f"in the tests' function: AssertionError {error}"[:2000])
            raise

    def hand_over(self, data: bytes) -> None:
        if self.found is not None:
            raise Stop  # nothing of what ended the tests goes to the candidate
        super().hand_over(data)

    def _do(self, operation: str, operands: tuple[Any, ...]) -> object:
        match operation, operands:
            case "call", (target, tuple(args), dict(kwargs)) if self._is_given(target):
                function: Any = target
                return function(*args, **kwargs)
            case "iter", (target,) if self._is_given(target):
                return iter(target)
            case "next", (target,) if self._is_given(target):
                try:
                    return (next(target),)
                except StopIteration:
                    return ()
            case (("len" | "bool" | "str" | "repr"), (target,)) if self._is_given(target):
                return _UNARY[operation](target)
            case "hash", (target,) if self._is_instance(target):
                return hash(target)
            case "item", (target, key) if self._is_instance(target):
                return target[key]
            case "operator", (str(name), target, other) if self._is_instance(target) and name in _BINARY:
                return _BINARY[name](target, other)
            case "get", (target, str(name)) if self._is_instance(target) and not name.startswith("_"):
                return getattr(target, name)
            case "get", (target, str(name)) if self._is_mock(target) and not name.startswith("_"):
                found = getattr(target, name)
                if type(found) in SCALARS or self._is_mock(found):
                    return found
            case "set", (target, str(name), value) if self._is_instance(target) and not name.startswith("_"):
                setattr(target, name, value)
                return None
        raise Refused(f"{operation} is not possible with what the tests passed")

    def _is_given(self, value: object) -> bool:
        return id(value) in self._numbers

    def _is_mock(self, value: object) -> bool:
        # What it gives for its attributes; not its methods, by which a program could set what the tests ask it for.
        kind: Any = getattr(sys.modules.get("unittest.mock"), "NonCallableMock", None)
        return kind is not None and isinstance(value, kind)

    def _is_instance(self, value: object) -> bool:
        # Only of the tests' own classes: attributes of functions, generators and modules lead to the tests.
        kind = type(value)
        return self._is_given(value) and (kind.__module__ == self._module or kind in _OPEN)


def _together(requests: list[bytes]) -> bytes:
    return b'["' + SEVERAL.encode() + b'",[' + b",".join(requests) + b"]]"


_BINARY: dict[str, Callable[[Any, Any], object]] = {
    name: getattr(operator, name)
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod")
}
_UNARY: dict[str, Callable[[Any], object]] = {"len": len, "bool": bool, "str": str, "repr": repr}


def _library_name(value: Any) -> Json | None:
    """How the candidate can find a function of the standard library by itself."""
    if isinstance(value, type):
        named: object = vars(builtins).get(value.__name__)
        if named is value:
            return ["v", value.__name__]
    if not isinstance(value, types.BuiltinFunctionType | types.FunctionType | types.MethodDescriptorType | type):
        return None
    if isinstance(value, types.MethodDescriptorType):
        owner = value.__objclass__
        known = vars(builtins).get(owner.__name__) is owner and owner in TYPES.values()
        return ["j", "builtins", f"{owner.__name__}.{value.__name__}"] if known else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    if module.partition(".")[0] not in sys.stdlib_module_names or module == "__main__":
        return None
    found: object = getattr(sys.modules.get(module), name, None)
    return ["j", module, name] if found is value else None
