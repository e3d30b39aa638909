"""Large imports find the garbage collector at rest, and leave it as it was."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from gristmill.startup import heavy_imports


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()
    sys.modules.pop("imported_by_a_test", None)


def test_it_rests_and_goes_on() -> None:
    with heavy_imports():
        assert not gc.isenabled()
        with heavy_imports():
            pass
        assert not gc.isenabled(), "the outer one goes on"
    assert gc.isenabled()


def test_it_goes_on_after_an_import_that_failed() -> None:
    with pytest.raises(ModuleNotFoundError), heavy_imports():
        raise ModuleNotFoundError("torch")
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    with heavy_imports():
        pass
    assert not gc.isenabled()


def test_it_rests_until_the_last_thread_is_through() -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with heavy_imports():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with heavy_imports():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join(10)
    assert gc.isenabled()


def test_only_what_an_import_left_is_out_of_its_sight() -> None:
    before = gc.get_freeze_count()
    with heavy_imports():
        pass
    assert gc.get_freeze_count() == before
    with heavy_imports():
        sys.modules["imported_by_a_test"] = ModuleType("imported_by_a_test")
    assert gc.get_freeze_count() > before
