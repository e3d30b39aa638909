"""How the local runner's settings come together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.config import load_settings
from gristmill.errors import ConfigError
from gristmill.local.options import LineOptions, load_profile, resolve
from gristmill.local.view import sparkline


def test_profile_environment_file_flags_rise_in_strength(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load_profile("no-such-policy")["trainer"]["groups_per_step"]

    def groups(**kwargs: object) -> int:
        resolved = resolve(LineOptions(policy="no-such-policy", **kwargs), "made-up")  # type: ignore[arg-type]
        return int(resolved.settings.trainer.groups_per_step)  # type: ignore[attr-defined]

    assert groups() == profile
    monkeypatch.setenv("GRISTMILL_TRAINER__GROUPS_PER_STEP", "21")
    assert groups() == 21
    file = tmp_path / "g.yaml"
    file.write_text("trainer: {groups_per_step: 22}\n")
    assert groups(config_file=file) == 22
    assert groups(config_file=file, flags={"trainer": {"groups_per_step": 23}}) == 23


def test_options_reach_their_settings() -> None:
    resolved = resolve(LineOptions(policy="x", versions=7, engines=("http://e:1",), bootstrap="b:1"), "made-up")
    assert resolved.values["trainer"]["max_versions"] == 7
    assert resolved.values["generator"]["engines"] == ["http://e:1"]
    assert resolved.settings.bootstrap == "b:1"
    assert resolved.settings.run_id == "made-up"
    assert resolve(LineOptions(flags={"run_id": "mine"}), "made-up").settings.run_id == "mine"


def test_unknown_settings_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.group_per_step.*groups_per_step"):
        resolve(LineOptions(flags={"trainer": {"group_per_step": 1}}), "r")
    file = tmp_path / "g.yaml"
    file.write_text("trainr: {}\n")
    with pytest.raises(ConfigError, match=r"trainr.*trainer"):
        resolve(LineOptions(config_file=file), "r")


def test_profiles_hold_known_settings_only() -> None:
    for policy in ("tiny", "smollm2", "anything-else"):
        resolve(LineOptions(policy=policy), "r")


def test_sparkline_scales_from_zero() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([-1.0, 2.0, 4.0]) == "▁▅█"
    assert len(sparkline([0.1] * 100, width=10)) == 10
    assert sparkline([]) == ""


def test_the_environment_and_the_file_name_cluster_and_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = resolve(LineOptions(), "r")
    assert (alone.bootstrap, alone.engines, alone.engine_port) == (None, (), None)
    monkeypatch.setenv("GRISTMILL_BOOTSTRAP", "kafka:9092")
    file = tmp_path / "g.yaml"
    file.write_text("generator: {engines: ['http://e:1', 'http://e:2']}\nengine: {port: 4711}\n")
    named = resolve(LineOptions(config_file=file), "r")
    assert (named.bootstrap, named.engines, named.engine_port) == ("kafka:9092", ("http://e:1", "http://e:2"), 4711)
    assert resolve(LineOptions(bootstrap="other:1"), "r").bootstrap == "other:1"


def test_secrets_go_to_the_environment_of_the_parts_and_not_into_files(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("generator: {api_key: hidden-1, attempts: 7}\nsecurity: {registry_auth: 'user:hidden-2'}\n")
    resolved = resolve(LineOptions(config_file=file, flags={"security": {"sasl_password": "hidden-3"}}), "r")
    assert "hidden" not in repr(resolved.values)
    assert resolved.values["generator"] == {"attempts": 7}
    assert resolved.secrets == {
        "GRISTMILL_GENERATOR__API_KEY": "hidden-1",
        "GRISTMILL_SECURITY__REGISTRY_AUTH": "user:hidden-2",
        "GRISTMILL_SECURITY__SASL_PASSWORD": "hidden-3",
    }
    child = load_settings(None, resolved.values, resolved.secrets)
    assert child == resolved.settings


@pytest.mark.parametrize("flags", [{"trainer": {"base_model": "/models/a"}}, {"engine": {"model_path": "/models/a"}}])
def test_a_second_policy_is_refused(flags: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ConfigError, match="leave .* out and say --policy /models/a"):
        resolve(LineOptions(flags=flags), "run")
