"""The contract with TRL: what the seam relies on, and that training through it does what the losses say."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from trainer_synthetic import Stream, make_group
from trl import GRPOConfig, GRPOTrainer

from gristmill.messages import Sampling, pack_logprobs, unpack_ids
from grpo_trainer.assembler import Assembler, Batch, Rules
from grpo_trainer.batch import to_tensors
from grpo_trainer.config import TrainerConfig
from grpo_trainer.model import Policy, load_policy
from grpo_trainer.observed import importance_weights
from grpo_trainer.seam import StreamTrainer
from grpo_trainer.step import StepResult

LOSSES = ["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]


def train(
    policy_dir: Path, tmp_path: Path, steps: int = 1, lag: int = 0, **values: Any
) -> tuple[Policy, list[StepResult]]:
    settings: dict[str, Any] = {"base_model": str(policy_dir), "learning_rate": 1e-2, "lora": {"r": 4, "alpha": 8}}
    config = TrainerConfig(**(settings | values))
    policy, stream = load_policy(config), Stream(lag=lag)
    StreamTrainer(
        model=policy.model,
        tokenizer=policy.tokenizer,
        optimizer=policy.optimizer,
        scheduler=policy.scheduler,
        config=config,
        source=stream,
        on_step=stream.on_step,
        steps=steps,
        work_dir=tmp_path,
        reference=policy.reference,
    ).train()
    return policy, stream.results


def test_trl_is_the_version_that_the_seam_was_written_for() -> None:
    assert version("trl").startswith("1.16.")
    assert list(inspect.signature(GRPOTrainer._generate_and_score_completions).parameters) == ["self", "inputs"]
    assert list(inspect.signature(GRPOTrainer._compute_loss).parameters) == ["self", "model", "inputs"]
    names = list(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)
    assert names[:7] == [
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
    ]  # fmt: skip
    source = inspect.getsource(GRPOTrainer._compute_loss)
    forward = source.index("_get_per_token_logps_and_entropies")
    for key in ('inputs["importance_sampling_ratio"]', 'inputs.get("importance_sampling_ratio")'):
        assert source.index(key) > forward, "the weights are read after the forward pass that they come from"
    assert "current_gradient_accumulation_steps" in source
    known = GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    assert all(loss in known for loss in LOSSES)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_every_loss_trains_and_micro_batches_change_nothing(loss_type: str, policy_dir: Path, tmp_path: Path) -> None:
    whole, (one,) = train(policy_dir, tmp_path, loss_type=loss_type, micro_batch_size=64)
    parts, (many,) = train(policy_dir, tmp_path, loss_type=loss_type, micro_batch_size=3)
    assert one.grad_norm > 0
    assert many.loss == pytest.approx(one.loss, rel=1e-3, abs=1e-5)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
    assert many.entropy == pytest.approx(one.entropy, rel=1e-5)
    assert many.mismatch_kl == pytest.approx(one.mismatch_kl, rel=1e-4)
    for name, tensor in whole.trained().items():
        torch.testing.assert_close(parts.trained()[name], tensor, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("correction", ["none", "token_mask", "sequence_truncate", "sequence_mask"])
def test_every_correction_trains(correction: str, policy_dir: Path, tmp_path: Path) -> None:
    _, results = train(policy_dir, tmp_path, 2, correction=correction, micro_batch_size=3)
    assert all(result.grad_norm > 0 for result in results)
    assert all(0 < result.importance_ratio_mean < 3 for result in results)


def test_our_dapo_is_trls(policy_dir: Path, tmp_path: Path) -> None:
    """The loss of one step equals what TRL computes from the same tensors, weights and corrections."""
    _, (result,) = train(policy_dir, tmp_path, correction="token_truncate", correction_max=1.1)
    config = TrainerConfig(base_model=str(policy_dir), lora={"r": 4, "alpha": 8})  # type: ignore[arg-type]
    model = load_policy(config).model
    tensors = to_tensors(result.batch, scale="group", pad_id=0, mask_truncated=False)
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], 1)
    mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], 1)
    width = tensors["completion_ids"].size(1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
    logps = logits.log_softmax(-1).gather(-1, tensors["completion_ids"].unsqueeze(-1)).squeeze(-1)
    log_ratio = (logps - tensors["sampling_per_token_logps"]) * tensors["completion_mask"]
    weights = log_ratio.exp().clamp(max=1.1)
    loss = -(weights * tensors["advantages"].unsqueeze(1) * tensors["completion_mask"]).sum()
    assert result.loss == pytest.approx(float(loss.detach() / tensors["num_items_in_batch"]), rel=1e-4)
    k3 = ((log_ratio.exp() - 1 - log_ratio) * tensors["completion_mask"]).sum() / tensors["num_items_in_batch"]
    assert result.mismatch_kl == pytest.approx(float(k3.detach()), rel=1e-3)
    assert result.mismatch_max_ratio == pytest.approx(float(log_ratio.detach().abs().max().exp()), rel=1e-4)


def test_kl_is_measured_against_the_base_model(policy_dir: Path, tmp_path: Path) -> None:
    for weights in ("lora", "full"):
        _, results = train(policy_dir, tmp_path, 3, beta=0.1, weights=weights)
        assert results[0].kl == pytest.approx(0.0, abs=1e-6), "version 0 is the base model"
        assert results[2].kl is not None
        assert results[2].kl > 1e-6


def test_mismatch_without_staleness_is_told_where_there_is_a_fresh_sample(policy_dir: Path, tmp_path: Path) -> None:
    _, (fresh, stale) = train(policy_dir, tmp_path, 2, lag=1, max_staleness=1)
    assert fresh.metrics["mismatch/kl_lag0"] == pytest.approx(fresh.mismatch_kl)
    assert "mismatch/kl_lag0" not in stale.metrics
    assert stale.mismatch_kl > 0


def test_mismatch_vanishes_when_the_engines_logprobs_are_right(policy_dir: Path, tmp_path: Path) -> None:
    config = TrainerConfig(base_model=str(policy_dir), lora={"r": 4, "alpha": 8})  # type: ignore[arg-type]
    policy = load_policy(config)
    temperature = 0.7

    class Exact(Stream):
        def next_batch(self) -> Batch:
            assembler = Assembler(Rules("run", 2, 0))
            for ordinal in (1, 2):
                for verdict in make_group(ordinal):
                    prompt = unpack_ids(verdict.prompt_token_ids).tolist()
                    completion = unpack_ids(verdict.completion_token_ids).tolist()
                    with torch.no_grad():
                        logits = policy.model(input_ids=torch.tensor([prompt + completion])).logits[0] / temperature
                    logps = logits.log_softmax(-1)
                    values = [float(logps[len(prompt) - 1 + i, t]) for i, t in enumerate(completion)]
                    sampling = Sampling(temperature=temperature, max_new_tokens=16)
                    exact = msgspec.structs.replace(verdict, logprobs=pack_logprobs(values), sampling=sampling)
                    assembler.offer(exact, 0.0)
            batch = assembler.cut()
            assert batch is not None
            self.assembler = assembler
            return batch

    stream = Exact()
    StreamTrainer(
        model=policy.model,
        tokenizer=policy.tokenizer,
        optimizer=policy.optimizer,
        scheduler=policy.scheduler,
        config=config,
        source=stream,
        on_step=stream.on_step,
        steps=1,
        work_dir=tmp_path,
    ).train()
    (result,) = stream.results
    assert result.mismatch_kl < 1e-8
    assert result.mismatch_max_ratio == pytest.approx(1.0, abs=1e-4)
    assert result.importance_ratio_mean == pytest.approx(1.0, abs=1e-4)


def test_importance_weights_truncate_or_mask() -> None:
    log_ratio = torch.tensor([[2.0, 0.25, 4.0], [1.0, 1.0, 1.0]]).log()

    def weights(correction: str) -> list[list[float]]:
        config = TrainerConfig(correction=correction, correction_max=2.0, correction_min=0.5)  # type: ignore[arg-type]
        return [[round(v, 4) for v in row] for row in importance_weights(log_ratio, config)[0].tolist()]

    assert weights("token_truncate") == [[2.0, 0.5, 2.0], [1.0, 1.0, 1.0]]
    assert weights("token_mask") == [[2.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert weights("sequence_truncate") == [[2.0], [1.0]]
    assert weights("sequence_mask")[1] == [1.0]
