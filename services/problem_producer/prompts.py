"""Prompt templates: problem in, chat messages (or a plain prompt) out.

Templates are Jinja2 in a sandbox. Names that do not exist are errors: unknown ones are found when the template is
compiled, and a field that one row lacks makes that row malformed. What a template can use: ``problem``, ``source``,
``level``, ``topic``, ``starter``, ``entry_point``, ``visible_tests`` and ``row`` (the source's own fields).
"""

from __future__ import annotations

from typing import NamedTuple

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gristmill.errors import ConfigError
from gristmill.messages import ChatMessage, ProblemKind
from problem_producer.config import PromptConfig
from problem_producer.items import Item, MalformedRow

BUILT_IN = {
    "boxed": PromptConfig(user="{{ problem }}\nReason step by step and put the final answer in \\boxed{}."),
    "plain": PromptConfig(user="{{ problem }}"),
    "code": PromptConfig(
        user=(
            "{% if starter %}Complete this Python function. Answer with one Python code block that holds the whole "
            "program: imports, helpers and the function.\n\n```python\n{{ starter }}\n```"
            "{% else %}{{ problem }}\nAnswer with one Python code block that holds the whole program."
            "{% if visible_tests %} It must pass these tests:\n\n```python\n{{ visible_tests | join('\n') }}\n```"
            "{% endif %}{% endif %}"
        )
    ),
}
"""Templates by name."""

DEFAULT_FOR: dict[ProblemKind, str] = {"math": "boxed", "code": "code"}
"""Template of each kind of problem when none is configured."""

VARIABLES = frozenset({"problem", "source", "level", "topic", "starter", "entry_point", "visible_tests", "row"})


class Prompt(NamedTuple):
    """Chat messages, or a plain prompt when there are none."""

    messages: tuple[ChatMessage, ...]
    plain: str | None


class PromptTemplate:
    """A compiled template."""

    def __init__(self, config: PromptConfig) -> None:
        """Raises ConfigError when a text does not parse or uses a name that no problem has."""
        self.config = config
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        self._parts: list[tuple[str, Template]] = []
        for role in ("system", "user", "plain"):
            text = getattr(config, role)
            if text is None:
                continue
            try:
                unknown = meta.find_undeclared_variables(environment.parse(text)) - VARIABLES
                compiled = environment.from_string(text)
            except TemplateSyntaxError as error:
                raise ConfigError(f"prompt template ({role}), line {error.lineno}: {error.message}") from error
            if unknown:
                raise ConfigError(
                    f"prompt template ({role}) uses {', '.join(sorted(unknown))}; there are "
                    f"{', '.join(sorted(VARIABLES))} (fields of the source are in row, as in row.hint)"
                )
            self._parts.append((role, compiled))

    def render(self, item: Item, source: str) -> Prompt:
        """The prompt of one problem. A problem that brings its own chat keeps it.

        Raises:
            MalformedRow: the template uses a field that this row lacks, or the prompt comes out empty.
        """
        if item.messages:
            return Prompt(item.messages, None)
        values = {
            "problem": item.text,
            "source": source,
            "level": item.difficulty,
            "topic": item.topic,
            "starter": item.starter,
            "entry_point": item.metadata.get("entry_point"),
            "visible_tests": item.visible_tests,
            "row": item.row,
        }
        texts: dict[str, str] = {}
        for role, template in self._parts:
            try:
                texts[role] = template.render(values)
                texts[role].encode()
            except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
                raise MalformedRow(f"prompt template ({role}): {error}") from error
        wanted = texts.get("plain", texts.get("user", ""))
        if not wanted.strip():
            raise MalformedRow("the prompt template gives an empty prompt")
        if "plain" in texts:
            return Prompt((), texts["plain"])
        return Prompt(tuple(ChatMessage(role=role, content=text) for role, text in texts.items()), None)


def template_config(prompt: str | PromptConfig | None, kind: ProblemKind) -> PromptConfig:
    """What ``prompt`` stands for: a built-in name, a template text, texts of one's own, or the default of ``kind``.

    Raises:
        ConfigError: a name that is not built in.
    """
    if isinstance(prompt, PromptConfig):
        return prompt
    name = prompt or DEFAULT_FOR[kind]
    if name in BUILT_IN:
        return BUILT_IN[name]
    if "{{" in name or "{%" in name:
        return PromptConfig(user=name)
    raise ConfigError(
        f"no prompt template {name!r}; built in are {', '.join(BUILT_IN)} (a template text holds {{{{ problem }}}})"
    )
