"""How the local runner's settings come together."""

from __future__ import annotations

from pathlib import Path

import pytest

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
