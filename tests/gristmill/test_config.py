"""Configuration: strength of the sources, unknown keys, bad values, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field, SecretStr, create_model

from gristmill.cli.config import plain
from gristmill.config import CommonConfig, Section, Settings, load_settings, merge, parse_overrides, sections
from gristmill.errors import ConfigError


class Inner(Section):
    """An inner section."""

    width: int = 3
    """Width."""


class Item(Section):
    """One of many."""

    name: str
    """Name."""


class Service(Section):
    """A service's section."""

    max_staleness: int = Field(default=1, ge=0)
    """Bound."""
    rate: float = 0.5
    """Rate."""
    sources: tuple[str, ...] = ()
    """Sources."""
    items: tuple[Item, ...] = ()
    """Items."""
    inner: Inner = Inner()
    """Inner."""
    token: SecretStr | None = None
    """Secret."""
    limit: int | None = 7
    """Limit."""


MODEL: type[Settings] = create_model("Model", __base__=Settings, trainer=(Service, Field(default_factory=Service)))


def load(file: Path | None = None, flags: list[str] | None = None, env: dict[str, str] | None = None) -> Any:
    return load_settings(file, parse_overrides(flags or []), env or {}, MODEL)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return path

    return write


def test_defaults() -> None:
    settings = load()
    assert settings.bootstrap == "127.0.0.1:9092"
    assert settings.trainer == Service()
    assert settings.common == CommonConfig()
    assert settings.section("trainer", Service) is settings.trainer


@pytest.mark.parametrize("count", range(4))
def test_strength_rises_from_defaults_over_environment_and_file_to_flags(file: Any, count: int) -> None:
    env = {"GRISTMILL_TRAINER__MAX_STALENESS": "2", "GRISTMILL_RUN_ID": "env"}
    path = file("trainer: {max_staleness: 3}\nrun_id: file")
    flags = ["--trainer.max_staleness=4", "--run-id", "flag"]
    settings = load(
        path if count >= 2 else None,
        flags if count >= 3 else None,
        env if count >= 1 else None,
    )
    assert settings.trainer.max_staleness == count + 1
    assert settings.run_id == ["default", "env", "file", "flag"][count]


def test_sources_merge_key_by_key(file: Any) -> None:
    settings = load(
        file("trainer: {rate: 0.25, inner: {width: 9}}"),
        ["--trainer.max_staleness=0"],
        {"GRISTMILL_TRAINER__LIMIT": "null", "GRISTMILL_TRAINER__INNER__WIDTH": "5"},
    )
    assert settings.trainer == Service(max_staleness=0, rate=0.25, limit=None, inner=Inner(width=9))


def test_the_environment_reads_lists_null_and_nothing() -> None:
    env = {
        "GRISTMILL_TRAINER__SOURCES": "[gsm8k, 'x:y']",
        "GRISTMILL_TRAINER__ITEMS": '[{"name": "a"}]',
        "GRISTMILL_TRAINER__LIMIT": "null",
        "GRISTMILL_REGISTRY_URL": "",
        "GRISTMILL_BOOTSTRAP": "a:1,b:2",
    }
    settings = load(env=env)
    assert settings.trainer.sources == ("gsm8k", "x:y")
    assert settings.trainer.items == (Item(name="a"),)
    assert settings.trainer.limit is None
    assert settings.registry_url is None
    assert settings.bootstrap == "a:1,b:2"


def test_the_given_environment_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_RUN_ID", "other")
    assert load().run_id == "default"
    assert load_settings(model=MODEL).run_id == "other"


def test_gristmill_config_names_a_file_and_the_flag_wins(file: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("run_id: other")
    env = {"GRISTMILL_CONFIG": str(file("run_id: file"))}
    assert load(env=env).run_id == "file"
    assert load(other, env=env).run_id == "other"


@pytest.mark.parametrize("name", ["007", "2026-01-01", "1e3", "true", "0x10", "a: b", "*", "#1"])
def test_a_name_that_yaml_would_read_otherwise_stays_a_name(name: str) -> None:
    assert parse_overrides([f"--run-id={name}"]) == {"run_id": name}
    if name not in ("a: b", "*", "#1"):
        assert load(flags=["--run-id", name]).run_id == name
        assert load(env={"GRISTMILL_RUN_ID": name}).run_id == name


def test_flags() -> None:
    assert parse_overrides(["--a.b-c=1", "--a.d", "x", "--e", "--f=", "--g=[1, x]", "--h=null", "--i={k: v}"]) == {
        "a": {"b_c": "1", "d": "x"},
        "e": "true",
        "f": "",
        "g": [1, "x"],
        "h": None,
        "i": {"k": "v"},
    }
    assert parse_overrides(["--n", "-1", "--q='null'"]) == {"n": "-1", "q": "null"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loose"], "unexpected argument 'loose'"),
        (["-x"], "unexpected argument '-x'"),
        (["--"], "unexpected argument '--'"),
        (["--a=1", "--a.b=2"], "already has a plain value"),
        (["--a.b=2", "--a=1"], "already has values of its own"),
        (["--a=[1"], "is not a value"),
    ],
)
def test_what_is_no_flag(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_overrides(arguments)


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"flags": ["--trainer.max_stalenes=1"]}, r"trainer\.max_stalenes \(flags\): .*did you mean max_staleness\?"),
    ({"flags": ["--botstrap=x"]}, r"botstrap \(flags\): .*did you mean bootstrap\?"),
    ({"flags": ["--trainer.inner.widht=1"]}, r"trainer\.inner\.widht \(flags\): .*did you mean width\?"),
    ({"flags": ["--trainer.items=[{name: a, nam: b}]"]}, r"trainer\.items\.0\.nam .*did you mean name\?"),
    ({"env": {"GRISTMILL_BOTSTRAP": "x"}}, r"GRISTMILL_BOTSTRAP \(environment\).*did you mean GRISTMILL_BOOTSTRAP\?"),
    (
        {"env": {"GRISTMILL_TRAINER_MAX_STALENESS": "1"}},
        r"GRISTMILL_TRAINER_MAX_STALENESS.*did you mean GRISTMILL_TRAINER__MAX_STALENESS\?",
    ),
    (
        {"env": {"GRISTMILL_TRAINER__MAX_STALENES": "1"}},
        r"trainer\.max_stalenes \(environment\).*did you mean max_staleness\?",
    ),
    ({"env": {"GRISTMILL_RUN_ID__X": "1"}}, r"GRISTMILL_RUN_ID__X .*has no parts"),
    ({"env": {"GRISTMILL_ZZZ": "1"}}, r"GRISTMILL_ZZZ \(environment\): no such setting"),
]


@pytest.mark.parametrize(("sources", "message"), UNKNOWN, ids=lambda item: str(item)[:40])
def test_unknown_keys_are_refused_with_the_nearest_known_one(sources: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**sources)


def test_unknown_keys_of_a_file_are_refused_with_its_name(file: Any) -> None:
    with pytest.raises(ConfigError, match=r"trainr \(file .*settings\.yaml\): no such setting; did you mean trainer"):
        load(file("trainr: {max_staleness: 1}"))


def test_all_problems_are_reported_at_once_each_with_its_source(file: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            file("metrics_port: 70000\nlog_level: loud"),
            ["--trainer.max_staleness=-1", "--trainer.rate=fast", "--nonsense=1"],
            {"GRISTMILL_RUN_ID": "a/b", "GRISTMILL_UNHEARD_OF": "1", "GRISTMILL_DRAIN_TIMEOUT_S": "soon"},
        )
    text = str(caught.value)
    for part in (
        "metrics_port (file ",
        "log_level (file ",
        "trainer.max_staleness (flags): Input should be greater than or equal to 0 (got '-1')",
        "trainer.rate (flags)",
        "nonsense (flags): no such setting",
        "run_id (environment)",
        "GRISTMILL_UNHEARD_OF",
        "drain_timeout_s (environment)",
    ):
        assert part in text
    assert len(text.splitlines()) == 9


@pytest.mark.parametrize("text", ["a: [1", "- 1", "just text", "a: b: c", "\t"])
def test_a_file_that_is_no_mapping_is_refused_with_its_name(file: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"settings\.yaml"):
        load(file(text))


def test_a_key_that_stands_twice_is_refused(file: Any) -> None:
    with pytest.raises(ConfigError, match="max_staleness stands twice"):
        load(file("trainer:\n  max_staleness: 1\n  max_staleness: 2\n"))


def test_yaml_anchors_work(file: Any) -> None:
    assert load(file("trainer: &t {rate: 0.1, items: []}\nrun_id: &r x\ntopic_prefix: *r")).topic_prefix == "x"


def test_absent_binary_and_empty_files(tmp_path: Path, file: Any) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot read the configuration: No such file"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(ConfigError, match=r"binary\.yaml: not YAML"):
        load(binary)
    assert load(file("# nothing\n")).trainer == Service()


def test_no_message_shows_a_secret(file: Any) -> None:
    for sources in (
        {"file": file("security: {sasl_password: [hidden-thing]}")},
        {"file": file("trainer: {token: {a: hidden-thing}}")},
        {"file": file("security: {sasl_password: hidden-thing, protocol: SASL_SSL}")},
        {"file": file("security: {sasl_password: hidden-thing, nonsense: 1}")},
        {"env": {"GRISTMILL_SECURITY__SASL_PASSWORD": "hidden-thing", "GRISTMILL_SECURITY__PROTOCOL": "SASL_SSL"}},
    ):
        with pytest.raises(ConfigError) as caught:
            load(**sources)
        assert "hidden-thing" not in str(caught.value)


def test_sasl_needs_its_parts() -> None:
    with pytest.raises(ConfigError, match=r"security.*SASL_SSL needs sasl_mechanism, sasl_username, sasl_password"):
        load(flags=["--security.protocol=SASL_SSL"])


def test_the_exit_deadline_does_not_cut_off_the_drain() -> None:
    with pytest.raises(ConfigError, match="exit_timeout_s 45 would cut off drain_timeout_s 60"):
        load(flags=["--drain-timeout-s=60"])


def test_shown_settings_mask_secrets_and_read_back(file: Any) -> None:
    settings = load(flags=["--trainer.token=hidden-thing", "--trainer.sources=[a, b]", "--data-dir=/x"])
    text = yaml.safe_dump(plain(settings.model_dump()))
    assert "hidden-thing" not in text
    assert yaml.safe_load(text)["trainer"]["token"] == "***"
    again = load(file(text))
    assert again.trainer.sources == ("a", "b")
    assert again.data_dir == Path("/x")


def test_variables_of_the_tests_are_no_settings() -> None:
    assert load(env={"GRISTMILL_TEST_FORBID_SKIP": "1", "GRISTMILL_SHARED": "/x"}).run_id == "default"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().run_id = "other"


def test_merge_keeps_its_arguments() -> None:
    base, over = {"a": {"b": 1}}, {"a": {"c": 2}, "d": 3}
    assert merge(base, over) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert base == {"a": {"b": 1}}


def test_every_installed_section_has_defaults_and_documented_settings() -> None:
    def check(model: type[Any], path: str) -> None:
        assert model.model_config["extra"] == "forbid", path
        for name, field in model.model_fields.items():
            assert field.description, f"{path}.{name} has no docstring"

    for name, model in sections().items():
        assert model.__doc__, name
        model()
        check(model, name)
    check(CommonConfig, "")
