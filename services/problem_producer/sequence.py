"""The order of problems: ordinal to problem, as a pure function of the settings and the sources' content.

Ordinal n is turn n of the mix (:mod:`problem_producer.mixing`), which names a source and that source's own index;
the index names an epoch and a position in it; a permutation seeded by the epoch names the row. Nothing of this
depends on how far anyone has come, so the sequence goes on exactly where it stopped, from the ordinal alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from gristmill.errors import ConfigError
from gristmill.messages import Problem, Sampling, make_group_id, now_ms
from problem_producer.config import ProblemsConfig
from problem_producer.mixing import Turn, turns
from problem_producer.shuffle import Permutation
from problem_producer.sources import Rendered, Source, open_sources

DIGEST_KEY = "problems_config"
"""Metadata key that holds :attr:`ProblemSequence.digest` in every problem."""


class ProblemSequence:
    """All problems of a run in their order."""

    def __init__(self, config: ProblemsConfig, run_id: str, sources: list[Source] | None = None) -> None:
        """Opens the sources, which reads their files.

        Raises:
            ConfigError: a source cannot be used, or has no end and is to be gone through a number of times.
        """
        self.sources = open_sources(config) if sources is None else sources
        self._config = config
        self._run_id = run_id
        self._epochs = [config.epochs if s.epochs is None else s.epochs for s in config.sources]
        for source, epochs in zip(self.sources, self._epochs, strict=True):
            if epochs and source.size is None:
                raise ConfigError(f"source {source.name} has no end: give it a limit, or epochs 0")
        self._totals = [
            source.size * epochs if epochs and source.size is not None else None
            for source, epochs in zip(self.sources, self._epochs, strict=True)
        ]
        self._orders: dict[tuple[int, int], Permutation] = {}
        self.digest = self._digest_all()

    def turns(self, ordinal: int = 1) -> Iterator[Turn]:
        """The turns of the mix from ``ordinal`` on, without regard to ``max_problems``."""
        return turns([source.weight for source in self._config.sources], self._totals, ordinal - 1)

    @property
    def size(self) -> int | None:
        """Problems in all; None without end."""
        ends = None if None in self._totals else sum(total or 0 for total in self._totals)
        bound = self._config.max_problems or None
        return min((size for size in (ends, bound) if size is not None), default=None)

    def starting_at(self, ordinal: int) -> Iterator[Problem]:
        """The problems from ``ordinal`` (1-based) to the end of the sequence."""
        size = self.size
        for current, turn in enumerate(self.turns(ordinal), start=ordinal):
            if size is not None and current > size:
                return
            yield self._problem(current, turn)

    def at(self, ordinal: int) -> Problem:
        """The problem with this ordinal.

        Raises:
            IndexError: the sequence ends before it.
        """
        for problem in self.starting_at(ordinal):
            return problem
        raise IndexError(f"ordinal {ordinal}: the sequence ends at {self.size}")

    def rendered(self, turn: Turn) -> tuple[int, Rendered]:
        """Epoch and problem of a turn of the mix."""
        source = self.sources[turn.source]
        if source.size is None:
            return 0, source.problem(turn.number)
        epoch, position = divmod(turn.number, source.size)
        if self._config.shuffle:
            position = self._order(turn.source, epoch, source.size)[position]
        return epoch, source.problem(position)

    def _problem(self, ordinal: int, turn: Turn) -> Problem:
        config, source = self._config, self.sources[turn.source]
        epoch, (item, prompt) = self.rendered(turn)
        metadata = item.metadata | ({"topic": item.topic} if item.topic else {})
        return Problem(
            run_id=self._run_id,
            ordinal=ordinal,
            group_id=make_group_id(self._run_id, ordinal),
            problem_id=item.problem_id,
            kind=item.kind,
            messages=prompt.messages,
            prompt=prompt.plain,
            reference=item.answer,
            tests=item.tests,
            source=source.name,
            difficulty=item.difficulty,
            epoch=epoch,
            group_size=config.group_size,
            sampling=self._sampling(ordinal),
            created_at_ms=now_ms(),
            metadata=metadata | {DIGEST_KEY: self.digest},
        )

    def _sampling(self, ordinal: int) -> Sampling:
        values = self._config.sampling
        return Sampling(
            temperature=values.temperature,
            top_p=values.top_p,
            top_k=values.top_k,
            min_p=values.min_p,
            max_new_tokens=values.max_new_tokens,
            stop=values.stop,
            seed=None if values.seed is None else values.seed + (ordinal - 1) * self._config.group_size,
        )

    def _order(self, source: int, epoch: int, size: int) -> Permutation:
        key = (source, epoch)
        if key not in self._orders:
            self._orders = {known: order for known, order in self._orders.items() if known[0] != source}
            self._orders[key] = Permutation(size, f"{self._config.seed}/{self.sources[source].name}/{epoch}")
        return self._orders[key]

    def _digest_all(self) -> str:
        """Sixteen hex digits over everything that decides a problem of this run, the files' content included."""
        config = self._config
        whole = {
            "sources": [
                {
                    "name": source.name,
                    "content": source.digest,
                    "weight": settings.weight,
                    "epochs": epochs,
                    "templates": {kind: template.model_dump() for kind, template in sorted(source.templates.items())},
                }
                for source, settings, epochs in zip(self.sources, config.sources, self._epochs, strict=True)
            ],
            "settings": config.model_dump(mode="json", include={"seed", "shuffle", "group_size", "sampling"}),
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
