"""Sources of problems by number: files and hub datasets through adapters, and the built-in arithmetic.

A source is opened once. Every row is then read, adapted and rendered, so that malformed rows are known before the
first problem is sent; what is kept of it is one number per usable row. After that, :meth:`Source.problem` is a pure
function of the index, which the order of problems and its resumption rest on.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from gristmill.errors import ConfigError
from gristmill.messages import ProblemKind
from problem_producer.adapters import adapter_for, in_subset, known_subset
from problem_producer.arithmetic import ArithmeticSource, split_of
from problem_producer.config import ProblemsConfig, PromptConfig, SourceConfig
from problem_producer.hub import HubRows
from problem_producer.items import Item, MalformedRow
from problem_producer.prompts import Prompt, PromptTemplate, template_config
from problem_producer.rows import RowStore, open_file

_ENDLESS_SPLITS = ("train", "heldout")


class Rendered(NamedTuple):
    """A problem with its prompt."""

    item: Item
    prompt: Prompt


class RowFault(NamedTuple):
    """A malformed row: where it stands and what is wrong with it."""

    row: int
    line: int
    error: str


class Source(Protocol):
    """Problems ``0 .. size - 1``, or without end."""

    name: str
    size: int | None
    """Usable problems; None for a source without end."""
    digest: str
    """Changes whenever any problem of the source might."""
    faults: Sequence[RowFault]
    origin: str
    """File or dataset, for messages."""
    unit: str
    """What the line of a fault counts."""
    templates: dict[ProblemKind, PromptConfig]
    """Prompt templates in use, by kind of problem."""

    def problem(self, index: int) -> Rendered:
        """The problem with this number."""

    def raw(self, fault: RowFault) -> bytes:
        """A malformed row as it stands in the file."""


class RowSource:
    """Problems in the rows of a file or hub dataset."""

    def __init__(self, config: SourceConfig, name: str, prompts: _Templates, rows: RowStore) -> None:
        """Raises ConfigError when no row is usable."""
        if not known_subset(config):
            raise ConfigError(f"source {name}: mbpp has no subset {config.subset!r}: train, test, validation, prompt")
        self.name = name
        self.origin, self.unit = rows.label, rows.unit
        self._faults: list[RowFault] = []
        self.faults: Sequence[RowFault] = self._faults
        self._rows = rows
        self._adapt = adapter_for(config, name)
        self._prompts = prompts
        self._usable = array("Q", self._scan(config))
        self.size: int | None = len(self._usable)
        self.templates = prompts.used
        self.digest = _digest(rows.digest, config.model_dump_json(include=_READING))
        if not self._usable:
            first = "; ".join(f"{self.unit} {fault.line}: {fault.error}" for fault in self.faults[:3])
            reason = f"all {len(self.faults)} rows are malformed ({first})" if self.faults else _empty(config)
            raise ConfigError(f"source {name}: nothing usable in {self.origin}: {reason}")

    def problem(self, index: int) -> Rendered:
        row = self._usable[index]
        try:
            item = self._adapt(self._rows.row(row))
        except MalformedRow as error:
            line = self._rows.line(row)
            raise ConfigError(
                f"{self.origin}, {self.unit} {line} was well formed when the run began and is not now ({error}): "
                "the file was changed; start again"
            ) from error
        item.metadata.update(file=self.origin, line=str(self._rows.line(row)))
        return Rendered(item, self._prompts.render(item, self.name))

    def raw(self, fault: RowFault) -> bytes:
        return self._rows.raw(fault.row)

    def _scan(self, config: SourceConfig) -> Iterator[int]:
        wanted = config.split or "all"
        count = 0
        for index in range(len(self._rows)):
            try:
                item = self._adapt(self._rows.row(index))
                check_size(item, self._prompts.render(item, self.name))
            except MalformedRow as error:
                self._faults.append(RowFault(index, self._rows.line(index), str(error)))
                continue
            if not in_subset(config, item) or (wanted != "all" and split_of(f"text|{item.identity}") != wanted):
                continue
            if config.limit is None or count < config.limit:
                count += 1
                yield index


def check_size(item: Item, prompt: Prompt) -> None:
    """Raises MalformedRow when the problem would not fit into a record."""
    texts = [prompt.plain or "", item.answer or "", *(message.content for message in prompt.messages)]
    if item.tests is not None:
        texts += [item.tests.source, *(case.input + case.expected for case in item.tests.cases)]
    size = sum(map(len, texts)) + sum(map(len, item.metadata.values()))
    if size > MAX_PROBLEM_CHARS:
        raise MalformedRow(f"the problem has {size} characters with its tests; the limit is {MAX_PROBLEM_CHARS}")


MAX_PROBLEM_CHARS = 1_500_000
"""At four bytes a character, what a record of the topic holds."""

_READING = {"kind", "name", "hub_config", "subset", "split", "limit", "fields", "challenge"}
"""Settings of a row source that decide which problems it has."""


class GeneratedSource:
    """The built-in arithmetic: endless, or its first ``limit`` problems."""

    faults: Sequence[RowFault] = ()
    unit = "index"

    def __init__(self, config: SourceConfig, name: str, prompts: _Templates, seed: int) -> None:
        """Raises ConfigError for levels or topics that do not exist."""
        split = config.split or "train"
        if split not in _ENDLESS_SPLITS:
            raise ConfigError(f"source {name}: arithmetic has the splits train and heldout, not {split}")
        try:
            self._source = ArithmeticSource(
                seed if config.seed is None else config.seed,
                levels=config.levels,
                kinds=config.topics,
                split="heldout" if split == "heldout" else "train",
            )
        except ValueError as error:
            raise ConfigError(f"source {name}: {error}") from error
        self.name = name
        self.origin = "arithmetic"
        self.size = config.limit
        self._prompts = prompts
        settings = (self._source.seed, self._source.levels, self._source.kinds, split, self.size, name)
        # The first problems stand for the generator itself: another release that changes them is another source.
        sample = [self._source.at(index).text for index in range(32)]
        self.digest = _digest(repr(settings), *sample)
        self.problem(0)
        self.templates = prompts.used

    def problem(self, index: int) -> Rendered:
        made = self._source.at(index)
        item = Item(
            problem_id=made.problem_id,
            kind="math",
            text=made.text,
            answer=made.answer,
            solution=made.solution,
            difficulty=float(made.level),
            topic=made.kind,
            metadata={"gold": made.answer, "index": str(index)},
            row={"problem": made.text, "level": made.level, "topic": made.kind},
        )
        return Rendered(item, self._prompts.render(item, self.name))

    def raw(self, fault: RowFault) -> bytes:
        return fault.error.encode()


class _Templates:
    """The templates of one source, compiled when a problem of their kind first comes."""

    def __init__(self, own: str | PromptConfig | None, general: str | PromptConfig | None) -> None:
        self._prompt = own if own is not None else general
        self._compiled: dict[ProblemKind, PromptTemplate] = {}
        self.used: dict[ProblemKind, PromptConfig] = {}

    def render(self, item: Item, source: str) -> Prompt:
        template = self._compiled.get(item.kind)
        if template is None:
            template = self._compiled[item.kind] = PromptTemplate(template_config(self._prompt, item.kind))
            self.used[item.kind] = template.config
        return template.render(item, source)


def open_sources(config: ProblemsConfig) -> list[Source]:
    """Open every source of the section.

    Raises:
        ConfigError: a file that cannot be read, settings that do not fit, or a source without a usable row.
        MissingExtra: an optional library is needed.
        InfrastructureError: the hub does not answer.
    """
    names = _names(config.sources)
    return [_open(source, name, config) for source, name in zip(config.sources, names, strict=True)]


def _open(source: SourceConfig, name: str, config: ProblemsConfig) -> Source:
    if source.split is None and config.split is not None:
        source = source.model_copy(update={"split": config.split})
    prompts = _Templates(source.prompt, config.prompt)
    if source.kind == "arithmetic":
        return GeneratedSource(source, name, prompts, config.seed)
    if source.path is None:
        return RowSource(source, name, prompts, HubRows(source))
    form = source.kind if source.kind in ("jsonl", "json", "parquet") else None
    return RowSource(source, name, prompts, open_file(source.path, form))


def _names(sources: Iterable[SourceConfig]) -> list[str]:
    """A label for each source; the second of the same name gets ``-2``, and so on."""
    names: list[str] = []
    for source in sources:
        name = base = source.name or _default_name(source)
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def _default_name(source: SourceConfig) -> str:
    if source.kind == "hf":
        return (source.hub_id or "hf").rpartition("/")[2]
    if source.kind in ("jsonl", "json", "parquet") and source.path is not None:
        return source.path.name.partition(".")[0] or source.kind
    return source.kind


def _digest(*parts: str) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(f"{len(part)}:{part}".encode())
    return sha.hexdigest()


def _empty(config: SourceConfig) -> str:
    """Why a source without malformed rows is empty: nothing is there, or a small file has nothing in the split."""
    return f"no rows in the split {config.split}" if config.split in ("train", "heldout") else "no rows"
