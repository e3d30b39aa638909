"""Settings of the problem producer (section ``problems``). Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gristmill.config import Section
from problem_producer.spec import parse_levels, parse_spec

SourceKind = Literal["arithmetic", "gsm8k", "math500", "aime", "humaneval", "mbpp", "jsonl", "json", "parquet", "hf"]


class FieldMapping(Section):
    """Where the parts of a problem stand in a row. Dots descend into nested values: ``extra.answer``, ``cases.0``."""

    kind: Literal["math", "code"] = "math"
    """Which verifier scores these problems."""
    problem: str | None = None
    """Problem text; ``problem`` unless ``messages`` is given."""
    messages: str | None = None
    """A chat prompt ready made (list of role and content); no template is applied to it."""
    answer: str | None = None
    """Reference answer of a maths problem, a string or a number; ``answer`` by default."""
    answer_after: str | None = None
    """Take the text after the last of this mark as the answer, for example ``####``."""
    answer_boxed: bool = False
    """Take what the last ``\\boxed{}`` of the answer field holds as the answer."""
    id: str | None = None
    """Identity of the problem, a string or a number; a digest of its text by default."""
    solution: str | None = None
    """Worked solution; only exported, never sent."""
    level: str | None = None
    """Difficulty: a number, or a text that ends in one, such as ``Level 5``."""
    topic: str | None = None
    """Finer kind, copied to the metadata."""
    tests: str | None = None
    """Tests of a code problem: Python asserts (a string or a list), or a list of cases with input and expected."""
    tests_kind: Literal["assert", "call", "stdio"] = "assert"
    """How tests reach the program."""
    test_setup: str | None = None
    """Python put before the asserts, a string or a list of lines."""
    entry_point: str | None = None
    """Name of the function that the tests call."""
    starter: str | None = None
    """Code that the program begins with (signature and docstring)."""
    metadata: tuple[str, ...] = ()
    """Further fields that are copied to the metadata."""

    @model_validator(mode="after")
    def _consistent(self) -> FieldMapping:
        if self.problem and self.messages:
            raise ValueError("give problem or messages, not both")
        if self.answer_after and self.answer_boxed:
            raise ValueError("give answer_after or answer_boxed, not both")
        if self.kind == "code" and not self.tests:
            raise ValueError("kind code needs the field that holds the tests")
        return self


class PromptConfig(Section):
    """A prompt of one's own: Jinja2 templates, in a sandbox; an unknown name is an error."""

    system: str | None = None
    """Template of the system message; none when absent."""
    user: str | None = None
    """Template of the user message."""
    plain: str | None = None
    """Template of a plain prompt, tokenised as it stands, for models without a chat template."""

    @model_validator(mode="after")
    def _one_form(self) -> PromptConfig:
        if (self.user is None) == (self.plain is None) or (self.plain is not None and self.system is not None):
            raise ValueError("give user (and system, if wanted), or plain alone")
        return self


class SourceConfig(Section):
    """One source of problems: a spec, or the same in keys. Keys win over the spec."""

    spec: str | None = None
    """Short form, for example ``gsm8k:train.jsonl`` or ``arithmetic:levels=1-3``; see docs/problems.md."""
    kind: SourceKind
    """Which source it is; ``jsonl``, ``json``, ``parquet`` and ``hf`` read any rows through ``fields``."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Label in messages and metrics; the kind or file name by default."""
    path: Path | None = None
    """Local file: .jsonl, .json or .parquet, the first two also with .gz."""
    hub: bool = False
    """Load from the Hugging Face hub (extra ``hub``)."""
    hub_id: str | None = None
    """Hub dataset; known for the named kinds."""
    hub_config: str | None = None
    """Configuration of the hub dataset."""
    hub_revision: str | None = None
    """Commit or tag of the hub dataset; pin it for runs that must be repeatable."""
    subset: str | None = None
    """Split of the hub dataset, or of MBPP by task id: train, test, validation, prompt."""
    split: Literal["all", "train", "heldout"] | None = None
    """Gristmill's own split by a digest of the problem, one in eight held out; files default to all, arithmetic to
    train."""
    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Share of this source in the mix, relative to the others."""
    epochs: int | None = Field(default=None, ge=0)
    """Times to go through this source, 0 for ever; ``problems.epochs`` by default."""
    limit: int | None = Field(default=None, ge=1)
    """Use the first so many problems only."""
    fields: FieldMapping | None = None
    """Field mapping of the kinds jsonl, json, parquet and hf."""
    prompt: str | PromptConfig | None = None
    """Prompt template of this source; ``problems.prompt`` by default."""
    levels: tuple[int, ...] | None = None
    """Levels of the arithmetic source, also as text: ``1-3``."""
    topics: tuple[str, ...] | None = None
    """Topics of the arithmetic source, for example addition."""
    seed: int | None = None
    """Seed of the arithmetic source; ``problems.seed`` by default."""
    challenge: bool = False
    """Add MBPP's challenge tests to the asserts."""

    @property
    def problem_kind(self) -> Literal["math", "code"]:
        """Which verifier scores the problems of this source."""
        if self.kind in ("humaneval", "mbpp"):
            return "code"
        return self.fields.kind if self.fields is not None else "math"

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"spec": value}
        if isinstance(value, dict) and isinstance(value.get("spec"), str):
            given = {key: item for key, item in value.items() if item is not None}
            return {**parse_spec(value["spec"]), **given}
        return value

    @field_validator("levels", mode="before")
    @classmethod
    def _levels(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        return parse_levels(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> SourceConfig:
        generic = self.kind in ("jsonl", "json", "parquet", "hf")
        if self.kind == "arithmetic":
            given = [name for name in ("path", "hub_id", "fields", "subset") if getattr(self, name) is not None]
            if given or self.hub:
                raise ValueError(f"arithmetic takes no {given[0] if given else 'hub'}")
        else:
            if (self.path is None) == (not self.hub):
                raise ValueError(f"source {self.kind}: give a path, or hub: true")
            given = [name for name in ("levels", "topics", "seed") if getattr(self, name) is not None]
            if given:
                raise ValueError(f"source {self.kind}: {given[0]} belongs to arithmetic")
        if self.kind == "hf" and not self.hub_id:
            raise ValueError("source hf: name the dataset with hub_id")
        if self.fields is not None and not generic:
            raise ValueError(f"source {self.kind} knows its fields; use kind jsonl, json or parquet for a mapping")
        if self.subset is not None and not (self.hub or self.kind == "mbpp"):
            raise ValueError(f"source {self.kind}: subset belongs to hub datasets and mbpp; limit or split may do")
        if self.challenge and self.kind != "mbpp":
            raise ValueError(f"source {self.kind}: challenge belongs to mbpp")
        return self


class SamplingConfig(Section):
    """How the completions of a group are sampled."""

    temperature: float = Field(default=1.0, ge=0)
    """Softmax temperature, 0 for greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass; 1 turns it off."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of candidates; -1 turns it off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Minimum probability relative to the best; 0 turns it off."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Upper bound on completion tokens."""
    stop: tuple[str, ...] = ()
    """Stop strings."""
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    """Base seed: sample i of ordinal n uses seed + (n - 1) x group_size + i. Absent lets the engine choose."""


class ProblemsConfig(Section):
    """What problems are sent, in which order, and how their completions are sampled."""

    sources: tuple[SourceConfig, ...] = Field(default_factory=lambda: (SourceConfig.model_validate("arithmetic"),))
    """Sources to mix; each is a spec or a mapping."""
    seed: int = 0
    """Seed of the shuffling and of the arithmetic source."""
    split: Literal["train", "heldout"] | None = None
    """Split of every source that names none. Set train to keep the problems of ``gristmill problems export --split
    heldout`` out of the line."""
    shuffle: bool = True
    """Go through each epoch in an order of its own, else in the order of the file."""
    epochs: int = Field(default=0, ge=0)
    """Times to go through every source, 0 for ever."""
    max_problems: int = Field(default=0, ge=0)
    """Stop after so many problems, 0 for no bound."""
    group_size: int = Field(default=8, ge=1, le=4096)
    """Completions per problem (G)."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are sampled."""
    prompt: str | PromptConfig | None = None
    """Prompt template: boxed, plain, code, a template text, or system and user texts; by default boxed for maths and
    code for code."""
    max_ahead: int | None = Field(default=256, ge=1)
    """Problems that may be sent beyond the trainer's newest admit_until (0 until it has announced one); null for no
    bound, as a data factory without a trainer needs."""
    on_config_change: Literal["refuse", "continue"] = "refuse"
    """What to do when the run was begun with other sources, seed, prompts or sampling than these."""

    @field_validator("sources", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | dict) else value

    @field_validator("sources")
    @classmethod
    def _some(cls, value: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
        if not value:
            raise ValueError("there must be at least one source, such as arithmetic")
        return value
