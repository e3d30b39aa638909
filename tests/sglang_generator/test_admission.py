"""Credit: when it counts, and whom it lets in."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sglang_generator.admission import Admission

Event = tuple[str, int, int]
events = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("delivered"), st.integers(0, 5), st.just(0)),
    ),
    max_size=30,
)


@given(events=events, ordinals=st.lists(st.integers(1, 20), unique=True, max_size=12))
def test_nothing_starts_beyond_credit_whose_version_is_delivered(events: list[Event], ordinals: list[int]) -> None:
    async def main() -> None:
        admission = Admission(enabled=True)
        waits = {ordinal: asyncio.create_task(admission.wait(ordinal)) for ordinal in ordinals}
        await asyncio.sleep(0)
        offers: list[tuple[int, int]] = []
        delivered = -1
        for kind, version, until in events:
            if kind == "offer":
                admission.offer(version, until)
                offers.append((version, until))
            else:
                admission.delivered(version)
                delivered = max(delivered, version)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            allowed = max((credit for version, credit in offers if version <= delivered), default=0)
            assert admission.admit_until == allowed
            assert {ordinal for ordinal, task in waits.items() if task.done()} == {o for o in ordinals if o <= allowed}
        for task in waits.values():
            task.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)
        assert admission.waiting == 0

    asyncio.run(main())


def test_without_credit_everything_starts_at_once() -> None:
    assert asyncio.run(Admission(enabled=False).wait(10**9)) == 0.0
