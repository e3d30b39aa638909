"""docs/configuration.md says what the models say."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from gristmill import config_reference
from gristmill.config import Section, sections

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_reference.render(), (
        "docs/configuration.md is stale; run: gristmill config reference > docs/configuration.md"
    )


def test_every_section_stands_in_it() -> None:
    text = config_reference.render()
    for name, model in sections().items():
        assert f"## `{name}`" in text
        for field in model.model_fields:
            assert f"`{name}.{field}" in text


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Item(Section):
        """An item."""

        name: str
        """Name of the ``item``."""

    class Inner(Section):
        """Inner."""

        width: int = Field(default=2, ge=1, le=9)
        """Width | height."""

    class Sample(Section):
        """A sample."""

        inner: Inner = Inner()
        """Inner."""
        items: tuple[Item, ...] = (Item(name="a"),)
        """Items."""
        by_name: dict[str, Item] = Field(default_factory=dict)
        """By name."""
        maybe: Inner | None = None
        """Perhaps."""
        size: float | None = Field(default=None, gt=0)
        """Size."""
        path: Path = Path("x")
        """Path."""

    monkeypatch.setattr(config_reference, "sections", lambda: {"sample": Sample})
    rows = [line for line in config_reference.render().splitlines() if line.startswith("| `sample.")]
    assert rows == [
        "| `sample.inner.width` | integer, at least 1, at most 9 | `2` | Width \\| height. |",
        '| `sample.items` | list of section | `[{"name": "a"}]` | Items. |',
        "| `sample.items[].name` | text | required | Name of the `item`. |",
        "| `sample.by_name` | mapping of section | `{}` | By name. |",
        "| `sample.by_name{}.name` | text | required | Name of the `item`. |",
        "| `sample.maybe.width` | integer, at least 1, at most 9 | `2` | Width \\| height. |",
        "| `sample.size` | number or null, above 0 | null | Size. |",
        "| `sample.path` | path | `x` | Path. |",
    ]
