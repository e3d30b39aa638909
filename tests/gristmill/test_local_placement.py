"""Who gets which GPU: every assignment is disjoint unless sharing was asked for, and every refusal says what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ConfigError
from gristmill.local.placement import (
    MOST_MEMORY,
    Gpu,
    Placement,
    Wishes,
    find,
    only_visible,
    parse_nvidia_smi,
    place,
)

LISTING = """\
0, GPU-aaaa1111-0000-0000-0000-000000000000, NVIDIA H200, 143771
1, GPU-aaaa2222-0000-0000-0000-000000000000, NVIDIA H200, 143771
3, GPU-bbbb3333-0000-0000-0000-000000000000, NVIDIA GH200, 480GB, [N/A]
"""


def make(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{index:08x}-1111", "H200", 143771) for index in range(count))


def indices(placement: Placement | None) -> tuple[list[int], list[list[int]]]:
    """GPUs of the trainer, and of each engine."""
    assert placement is not None
    trainer = [gpu.index for gpu in placement.trainer.gpus] if placement.trainer else []
    return trainer, [[gpu.index for gpu in seat.gpus] for seat in placement.engines]


SGLANG = Wishes("sglang")
EMBEDDED = Wishes("embedded")


def test_the_listing_of_nvidia_smi_is_read_with_commas_in_names_and_memory_that_is_not_known() -> None:
    gpus = parse_nvidia_smi("noise\n" + LISTING)
    assert [(gpu.index, gpu.name, gpu.memory_mib) for gpu in gpus] == [
        (0, "NVIDIA H200", 143771),
        (1, "NVIDIA H200", 143771),
        (3, "NVIDIA GH200, 480GB", 0),
    ]
    assert parse_nvidia_smi("No devices were found\n") == ()


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, [0, 1, 3]),
        ("", []),
        ("3,0", [3, 0]),
        ("1,1", [1]),
        ("0,-1,1", [0]),
        ("1,7,0", [1]),
        ("GPU-bbbb,0", [3, 0]),
        ("GPU-aaaa,0", []),  # two GPUs begin so
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(variable: str | None, seen: list[int]) -> None:
    assert [gpu.index for gpu in only_visible(parse_nvidia_smi(LISTING), variable)] == seen


def test_a_gpu_is_named_by_index_or_by_the_beginning_of_its_uuid() -> None:
    gpus = parse_nvidia_smi(LISTING)
    for name, index in (("3", 3), ("GPU-bbbb3333-0000-0000-0000-000000000000", 3), ("gpu-aaaa2", 1)):
        found = find(gpus, name)
        assert found is not None
        assert found.index == index
    for name in ("2", "GPU-aaaa", "", "x"):
        assert find(gpus, name) is None


def test_by_default_the_trainer_takes_the_first_gpu_and_servers_the_others() -> None:
    assert indices(place(make(2), SGLANG)) == ([0], [[1]])
    assert indices(place(make(4), SGLANG)) == ([0], [[1], [2], [3]])
    two = place(make(4), replace(SGLANG, tp=2))
    assert indices(two) == ([0], [[1, 2]])
    assert two is not None
    assert two.describe() == ["GPU 0 (H200): trainer", "GPU 1 (H200), GPU 2 (H200): engine", "not used: GPU 3 (H200)"]


def test_wishes_are_kept_and_what_is_left_open_steps_aside() -> None:
    assert indices(place(make(3), replace(SGLANG, trainer=("2",)))) == ([2], [[0], [1]])
    assert indices(place(make(3), replace(SGLANG, engine=("0",)))) == ([1], [[0]])
    assert indices(place(make(3), replace(SGLANG, trainer=("1",), engine=("2", "0")))) == ([1], [[2], [0]])
    assert indices(place(make(2), replace(SGLANG, trainer_on_cpu=True))) == ([], [[0], [1]])
    by_uuid = replace(SGLANG, trainer=("GPU-00000001",))
    assert indices(place(make(2), by_uuid)) == ([1], [[0]])


@pytest.mark.parametrize(
    ("count", "wishes", "message"),
    [
        (0, SGLANG, "needs a GPU, and none is visible (why)"),
        (
            1,
            SGLANG,
            "GPU 0 (H200) is the only one visible, and the trainer and the engine would share it; say --share-gpu",
        ),
        (2, replace(SGLANG, trainer=("5",)), "--gpus trainer: no GPU '5' is visible; visible: GPU 0 (H200), GPU 1"),
        (0, replace(EMBEDDED, engine=("0",)), "--gpus engine: no GPU '0' is visible; visible: none (why)"),
        (2, replace(SGLANG, engine=("1", "1")), "--gpus engine: GPU 1 (H200) is listed twice"),
        (2, replace(SGLANG, engine=("1", "GPU-00000001-1111")), "listed twice"),
        (2, replace(SGLANG, trainer=("1",), engine=("0", "1")), "GPU 1 (H200) would be shared"),
        (1, replace(SGLANG, trainer=("0",)), "GPU 0 (H200) would be shared by the trainer and an engine"),
        (2, replace(SGLANG, engine=("0", "1")), "GPU 0 (H200) would be shared"),
        (2, replace(SGLANG, trainer=("0", "1")), "the trainer uses one GPU"),
        (
            3,
            replace(SGLANG, engine=("0", "1", "2"), tp=2),
            "3 GPUs cannot be dealt out in groups of local.sglang.tp = 2",
        ),
        (2, replace(SGLANG, tp=4), "tp = 4 needs 4 GPUs, and 2 can be seen"),
        (2, replace(SGLANG, tp=2), "would be shared"),
        (2, replace(EMBEDDED, engine=("0", "1")), "the embedded engine uses one GPU"),
        (2, replace(EMBEDDED, engine=("0",), engine_on_cpu=True), "engine.device is cpu"),
        (2, replace(SGLANG, trainer=("0",), trainer_on_cpu=True), "trainer.device is cpu"),
        (2, Wishes("running", engine=("0",)), "named by URL run already"),
    ],
)
def test_what_cannot_be_is_refused_in_words(count: int, wishes: Wishes, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        place(make(count), wishes, " (why)")


def test_a_shared_gpu_is_divided() -> None:
    share = replace(SGLANG, share=True)
    placement = place(make(1), share)
    assert indices(placement) == ([0], [[0]])
    assert placement is not None
    assert (placement.engine_fraction, placement.trainer_fraction) == (0.45, 0.45)
    assert "45%" in placement.remarks[0]
    own = place(make(1), replace(share, engine_fraction=0.6, trainer_fraction=0.3))
    assert own is not None
    assert (own.engine_fraction, own.trainer_fraction, own.remarks) == (0.6, 0.3, ())
    with pytest.raises(ConfigError, match=r"mem_fraction is set, so set trainer\.gpu_memory_fraction, too"):
        place(make(1), replace(share, engine_fraction=0.5))
    with pytest.raises(ConfigError, match=r"gpu_memory_fraction is set, so set local\.sglang\.mem_fraction, too"):
        place(make(1), replace(share, trainer_fraction=0.5))
    with pytest.raises(ConfigError, match=r"make 1\.1 of its memory, more than 0\.95"):
        place(make(1), replace(share, engine_fraction=0.6, trainer_fraction=0.5))
    apart = place(make(2), share)
    assert apart is not None
    assert (indices(apart), apart.engine_fraction, apart.remarks) == (([0], [[1]]), None, ())


def test_leave_to_share_is_taken_where_groups_need_it() -> None:
    placement = place(make(2), replace(SGLANG, tp=2, share=True))
    assert indices(placement) == ([0], [[0, 1]])
    assert placement is not None
    assert [gpu.index for gpu in placement.shared] == [0]


def test_for_ipc_everybody_sees_the_same_gpus_and_is_told_its_own() -> None:
    placement = place(make(3), replace(SGLANG, trainer=("1",), same_view=True))
    assert placement is not None
    assert placement.trainer is not None
    seats = [placement.trainer, *placement.engines]
    assert {seat.env["CUDA_VISIBLE_DEVICES"] for seat in seats} == {"1,0,2"}
    assert [seat.first for seat in seats] == [0, 1, 2]
    shared = place(make(2), replace(SGLANG, trainer=("1",), engine=("0", "1"), tp=2, share=True, same_view=True))
    assert shared is not None
    assert shared.trainer is not None
    assert shared.engines[0].env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert (shared.engines[0].first, shared.trainer.first) == (0, 1)


def test_the_embedded_engine_is_left_alone_until_gpus_are_asked_for_or_there_are_two() -> None:
    assert place((), EMBEDDED) is None
    assert place(make(1), EMBEDDED) is None
    assert place(make(3), replace(EMBEDDED, engine_on_cpu=True)) is None
    assert indices(place(make(3), EMBEDDED)) == ([0], [[1]])
    assert indices(place(make(2), replace(EMBEDDED, trainer=("1",), engine=("0",)))) == ([1], [[0]])
    with pytest.raises(ConfigError, match="--share-gpu"):
        place(make(1), replace(EMBEDDED, trainer=("0",)))
    shared = place(make(1), replace(EMBEDDED, share=True))
    assert shared is not None
    assert (shared.engine_fraction, shared.trainer_fraction) == (None, 0.3)


def test_running_engines_leave_only_the_trainer_to_place() -> None:
    assert place(make(2), Wishes("running")) is None
    assert indices(place(make(2), Wishes("running", trainer=("1",)))) == ([1], [])


names = st.lists(st.integers(0, 5).map(str), min_size=1, max_size=4).map(tuple)
wishes_of_any_kind = st.builds(
    Wishes,
    engine_kind=st.sampled_from(["sglang", "embedded", "running"]),
    trainer=st.none() | names,
    engine=st.none() | names,
    share=st.booleans(),
    tp=st.integers(1, 3),
    trainer_on_cpu=st.booleans(),
    engine_on_cpu=st.just(False),
    same_view=st.booleans(),
    engine_fraction=st.none() | st.sampled_from([0.2, 0.45, 0.7]),
    trainer_fraction=st.none() | st.sampled_from([0.2, 0.45, 0.7]),
)


@given(count=st.integers(0, 5), wishes=wishes_of_any_kind)
def test_every_assignment_keeps_the_rules(count: int, wishes: Wishes) -> None:
    gpus = make(count)
    try:
        placement = place(gpus, wishes)
    except ConfigError:
        return
    if placement is None:
        assert wishes.engine_kind != "sglang"
        return
    trainer, engines = indices(placement)
    flat = [index for group in engines for index in group]
    assert set(trainer) | set(flat) <= {gpu.index for gpu in gpus}
    assert len(flat) == len(set(flat)), "two engines have one GPU"
    assert all(len(group) == wishes.group for group in engines)
    assert bool(trainer) != wishes.trainer_on_cpu
    if wishes.trainer is not None:
        assert trainer == [int(name) for name in wishes.trainer]
    if wishes.engine is not None:
        assert flat == [int(name) for name in wishes.engine]
    if wishes.engine_kind == "running":
        assert not engines
    if set(trainer) & set(flat):
        assert wishes.share
        if wishes.engine_kind == "sglang":
            assert placement.engine_fraction is not None
            assert placement.trainer_fraction is not None
            assert placement.engine_fraction + placement.trainer_fraction <= MOST_MEMORY + 1e-9
    for seat in [*placement.engines, *([placement.trainer] if placement.trainer else [])]:
        first = seat.first
        assert seat.visible[first : first + len(seat.gpus)] == seat.gpus, "a group is one stretch of what it sees"
        assert set(seat.env["CUDA_VISIBLE_DEVICES"].split(",")) == {str(gpu.index) for gpu in seat.visible}
        if not wishes.same_view:
            assert seat.visible == seat.gpus
