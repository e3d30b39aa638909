"""Gradients that are no number: what made them, and what the trainer does when one comes all the same."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.helpers import disable_input_dtype_casting
from torch.nn.attention import SDPBackend, sdpa_kernel
from trainer_line import Line, make_common, make_context, policies_of, steps_of
from trainer_synthetic import Stream
from transformers.masking_utils import create_causal_mask

from gristmill.broker import EmbeddedBroker
from grpo_trainer import run as run_module
from grpo_trainer.batch import lines_of, micro_batches, to_tensors
from grpo_trainer.config import TrainerConfig
from grpo_trainer.model import Policy, load_policy
from grpo_trainer.recovery import Recovery, in_float32, keep_evidence
from grpo_trainer.run import TrainingFailed
from grpo_trainer.seam import Diverged, StreamTrainer
from grpo_trainer.service import run

Spoils = Callable[[int, torch.Tensor], bool]
"""Whether to spoil a backward pass, by the number of its forward pass, from 1, and the layer's output."""


class Run:
    """A short training of its own, with a backward pass that can be spoiled."""

    def __init__(
        self,
        policy_dir: Path,
        work_dir: Path,
        spoils: Spoils | None = None,
        *,
        far: float | None = None,
        steps: int = 1,
        descent: bool = False,
        **values: Any,
    ) -> None:
        settings: dict[str, Any] = {"base_model": str(policy_dir), "learning_rate": 1e-2, "lora": {"r": 4, "alpha": 8}}
        config = TrainerConfig(**(settings | {"micro_batch_size": 3} | values))
        self.policy, self.stream = load_policy(config), Stream(far)
        self.recoveries: list[Recovery] = []
        self.evidence = work_dir / "no_number"
        if descent:  # weights are linear in the gradient then: Adam makes a step of any size of the smallest difference
            parameters = [p for p in self.policy.model.parameters() if p.requires_grad]
            self.policy.optimizer = torch.optim.SGD(parameters, lr=1.0)
            self.policy.scheduler = torch.optim.lr_scheduler.LambdaLR(self.policy.optimizer, lambda _: 1.0)
        if spoils is not None:
            spoil(self.policy, spoils)
        self.trainer = StreamTrainer(
            model=self.policy.model,
            tokenizer=self.policy.tokenizer,
            optimizer=self.policy.optimizer,
            scheduler=self.policy.scheduler,
            config=config,
            source=self.stream,
            on_step=self.stream.on_step,
            steps=steps,
            work_dir=work_dir,
            reference=self.policy.reference,
            bf16=self.policy.autocast,
            on_recovery=self.recoveries.append,
        )

    def go(self) -> dict[str, torch.Tensor]:
        self.trainer.train()
        return {name: tensor.clone() for name, tensor in self.policy.trained().items()}


def spoil(policy: Policy, spoils: Spoils) -> None:
    """Have the gradient that enters one layer be NaN in one place, whenever ``spoils`` says so."""
    count = 0

    def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal count
        del module, inputs
        count += 1
        if output.requires_grad and spoils(count, output):
            hole = torch.zeros_like(output)
            hole[0, 0, 0] = math.nan
            output.register_hook(lambda gradient: gradient + hole)

    layer = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    layer.model.layers[1].self_attn.q_proj.register_forward_hook(hook)


def second_only(number: int, output: torch.Tensor) -> bool:
    """The last micro-batch of two rows, of three, three and two; taken again, it comes as single rows."""
    del number
    return len(output) == 2


# What makes gradients no number


@pytest.mark.parametrize(
    "values",
    [
        {"loss_type": "dapo"},
        {"loss_type": "dapo", "delta": 4.0},
        {"loss_type": "sapo"},
        {"loss_type": "cispo"},
        {"loss_type": "vespo"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ],
)
@pytest.mark.parametrize("far", [-200.0, -60.0])
def test_unlikely_tokens_leave_the_gradient_a_number(
    values: dict[str, Any], far: float, policy_dir: Path, tmp_path: Path
) -> None:
    """The ratio in the loss is e^196 here: exp of it is infinite, and the clip multiplies that by 0."""
    result = Run(policy_dir, tmp_path, far=far, correction="none", **values)
    result.go()
    assert not result.recoveries
    assert math.isfinite(result.stream.results[0].grad_norm)
    assert math.isfinite(result.stream.results[0].mismatch_kl)


@pytest.mark.parametrize("correction", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("far", [-200.0, -60.0])
def test_corrections_stand_unlikely_tokens(correction: str, far: float, policy_dir: Path, tmp_path: Path) -> None:
    result = Run(policy_dir, tmp_path, far=far, correction=correction)
    result.go()
    assert not result.recoveries
    assert math.isfinite(result.stream.results[0].grad_norm)


def test_a_masked_completion_cannot_spoil_the_others(policy_dir: Path, tmp_path: Path) -> None:
    """Masking comes after exp in TRL, so what the engine said of a masked token must not reach exp."""
    result = Run(policy_dir, tmp_path, far=-200.0, correction="none", mask_truncated_completions=True)
    tensors = to_tensors(Stream(-200.0).next_batch(), scale="group", pad_id=0, mask_truncated=True)
    assert not tensors["sampling_per_token_logps"][tensors["completion_mask"] == 0].any()
    result.go()
    assert not result.recoveries
    assert result.stream.results[0].grad_norm > 0


def test_the_reference_may_find_likely_what_the_policy_does_not() -> None:
    from grpo_trainer.observed import within_reach

    ours = torch.tensor([-300.0, -1.0, -2.0], requires_grad=True)
    reference = within_reach(torch.tensor([-1.0, -300.0, -2.5]), ours.detach())
    assert reference.tolist() == [-280.0, -21.0, -2.5]
    ((reference - ours).exp() - (reference - ours) - 1).sum().backward()
    assert ours.grad is not None
    assert bool(ours.grad.isfinite().all())


def test_rows_need_no_attention_mask(policy_dir: Path, tmp_path: Path) -> None:
    """Every pass goes to the model without a mask, so that attention takes the causal kernels, and never cuDNN's."""
    assert "find_packed_sequence_indices" in inspect.getsource(inspect.getmodule(create_causal_mask))  # type: ignore[arg-type]
    result, masks = Run(policy_dir, tmp_path, beta=0.1), []
    for layer in result.policy.model.get_base_model().model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    result.go()
    assert len(masks) == 2 * 2 * 3, "two layers, policy and reference, three micro-batches"
    assert all(mask is None for mask in masks)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_closing_the_gap_changes_no_logprob(policy_dir: Path) -> None:
    model = load_policy(TrainerConfig(base_model=str(policy_dir), lora={"r": 4, "alpha": 8})).model.eval()  # type: ignore[arg-type]
    whole = to_tensors(Stream().next_batch(), scale="group", pad_id=0, mask_truncated=True)
    for chunk in micro_batches(whole, max_rows=5, max_tokens=1000):
        tensors, lines = chunk.tensors, lines_of(chunk.tensors)
        gap = tensors["prompt_ids"].size(1) + tensors["completion_ids"].size(1)
        assert lines.ids.size(1) <= gap
        for row in range(chunk.rows):
            prompt = tensors["prompt_ids"][row][tensors["prompt_mask"][row].bool()]
            completion = tensors["completion_ids"][row][tensors["completion_mask"][row].bool()]
            alone = torch.cat([prompt, completion])
            assert torch.equal(lines.ids[row][: len(alone)], alone)
            assert lines.labels[row][lines.labels[row] != -100].tolist() == completion.tolist()
            with torch.no_grad():
                ours = model(input_ids=lines.ids).logits[row, :-1].log_softmax(-1)
                expected = model(input_ids=alone.unsqueeze(0)).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            places = lines.columns[row][: len(completion)]
            torch.testing.assert_close(ours[places], expected, rtol=1e-4, atol=1e-5)


# What the trainer does


def test_one_bad_micro_batch_is_taken_again_in_float32(policy_dir: Path, tmp_path: Path) -> None:
    sound = Run(policy_dir, tmp_path / "a", descent=True)
    expected = sound.go()
    result = Run(policy_dir, tmp_path / "b", second_only, descent=True)
    for name, tensor in result.go().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)
    (recovery,) = result.recoveries
    assert (recovery.how, recovery.micro_batch, recovery.micro_batches, recovery.rows) == ("float32", 3, 3, 2)
    assert recovery.parameters_broken > 0
    assert "layers.1.self_attn.q_proj" in recovery.parameters[0], "where the backward pass met it first"
    assert len(recovery.prompt_lengths) == len(recovery.completion_lengths) == 2
    assert set(recovery.group_ids) <= {group.group_id for group in result.stream.results[0].batch.groups}
    (one,), (other,) = sound.stream.results, result.stream.results
    assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert other.mismatch_kl == pytest.approx(one.mismatch_kl, rel=1e-5), "counted once"
    assert other.entropy == pytest.approx(one.entropy, rel=1e-5)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "luspo", "sapo"])
def test_taken_again_row_by_row_every_loss_is_the_same(loss_type: str, policy_dir: Path, tmp_path: Path) -> None:
    expected = Run(policy_dir, tmp_path / "a", descent=True, loss_type=loss_type).go()
    result = Run(policy_dir, tmp_path / "b", second_only, descent=True, loss_type=loss_type)
    for name, tensor in result.go().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)
    assert len(result.recoveries) == 1


def test_terms_that_are_means_over_a_micro_batch_are_not_divided(policy_dir: Path, tmp_path: Path) -> None:
    def last_of_pass(number: int, output: torch.Tensor) -> bool:
        return len(output) == 2 and number in (3, 6)

    expected = Run(policy_dir, tmp_path / "a", descent=True, entropy_coef=0.1).go()
    result = Run(policy_dir, tmp_path / "b", last_of_pass, descent=True, entropy_coef=0.1)
    for name, tensor in result.go().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)
    assert result.recoveries[0].how == "float32"


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_what_does_not_come_again_leaves_no_trace(weights: str, policy_dir: Path, tmp_path: Path) -> None:
    """To the last bit, with dropout: sound micro-batches are added up as before, and draws are the same."""
    more: dict[str, Any] = {"weights": weights, "steps": 2, "lora": {"r": 4, "alpha": 8, "dropout": 0.2}}
    expected = Run(policy_dir, tmp_path / "a", **more).go()
    result = Run(policy_dir, tmp_path / "b", lambda number, _: number == 2, **more)
    for name, tensor in result.go().items():
        assert torch.equal(tensor, expected[name]), name
    assert [recovery.how for recovery in result.recoveries] == ["repeated"]
    assert len(result.stream.results) == 2


def test_later_micro_batches_draw_what_they_would_have_drawn(policy_dir: Path, tmp_path: Path) -> None:
    """The first micro-batch is taken again, row by row; dropout in those behind it must not notice."""
    dropout = {"r": 4, "alpha": 8, "dropout": 0.3}
    draws: dict[str, list[torch.Tensor]] = {"a": [], "b": []}

    def watch(into: list[torch.Tensor]) -> Run:
        name = "a" if into is draws["a"] else "b"
        spoils = (lambda number, _: number in (1, 4)) if name == "b" else None
        found = Run(policy_dir, tmp_path / name, spoils, lora=dropout, descent=True)
        layer = found.policy.model.get_base_model().model.layers[0].self_attn.q_proj
        layer.lora_dropout["default"].register_forward_hook(lambda _, __, output: into.append(output.detach() == 0))
        return found

    watch(draws["a"]).go()
    second = watch(draws["b"])
    second.go()
    assert second.recoveries[0].micro_batch == 1
    assert len(draws["b"]) == 3 + 1 + 3 + 2, "a pass, the bad one, its rows, and the other two"
    for before, after in zip(draws["a"][1:], draws["b"][-2:], strict=True):
        assert torch.equal(before, after)


def test_bfloat16_weights_are_float32_meanwhile_and_the_same_afterwards(policy_dir: Path, tmp_path: Path) -> None:
    def in_bfloat16(number: int, output: torch.Tensor) -> bool:
        del number
        return bool(output.dtype == torch.bfloat16 and len(output) == 2)

    sound = Run(policy_dir, tmp_path / "a", descent=True, dtype="bfloat16")
    result = Run(policy_dir, tmp_path / "b", in_bfloat16, descent=True, dtype="bfloat16", entropy_coef=0.0)
    before = {
        n: (p.dtype, p.detach().clone()) for n, p in result.policy.model.named_parameters() if not p.requires_grad
    }
    expected, found = sound.go(), result.go()
    assert result.recoveries[0].how == "float32"
    for name, parameter in result.policy.model.named_parameters():
        if name in before:
            assert parameter.dtype == before[name][0] == torch.bfloat16
            assert torch.equal(parameter, before[name][1])
    moved = torch.cat([(expected[n] - found[n]).flatten() for n in found]).norm()
    whole = sound.stream.results[0].grad_norm
    assert 0 < moved < 0.05 * whole, "float32 and bfloat16 differ by rounding only"


def test_in_float32_gives_the_dtypes_back_when_it_fails(policy_dir: Path) -> None:
    model = load_policy(TrainerConfig(base_model=str(policy_dir), dtype="bfloat16")).model
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    inside: list[torch.dtype] = []

    def fail() -> None:
        with in_float32(model):
            inside.extend(parameter.dtype for parameter in model.parameters())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert set(inside) == {torch.float32}
    assert {name: parameter.dtype for name, parameter in model.named_parameters()} == kinds
    assert torch.bfloat16 in kinds.values()


def test_no_memory_for_float32_ends_with_the_reason(
    policy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Run(policy_dir, tmp_path, second_only)
    take = result.trainer._take

    def full(*args: Any, plain: bool = False) -> torch.Tensor:
        if plain:
            raise torch.OutOfMemoryError("48 GiB of 49 GiB in use")
        return take(*args, plain=plain)

    monkeypatch.setattr(result.trainer, "_take", full)
    with pytest.raises(Diverged, match="no memory to take it again in float32 .*48 GiB.*micro-batch 3 of 3"):
        result.go()
    assert not result.stream.results


def test_what_is_no_number_in_float32_either_ends_the_run_and_is_kept(policy_dir: Path, tmp_path: Path) -> None:
    result = Run(policy_dir, tmp_path, lambda number, _: number in (2, 5, 6, 7, 8))
    with pytest.raises(Diverged, match=r"the gradient norm of step 1 is nan, in float32 too, because of micro-batch 2"):
        result.go()
    assert not result.stream.results
    assert not result.recoveries
    (file,) = result.evidence.glob("*")
    found = torch.load(file, weights_only=True)
    assert (found["version"], found["micro_batch"], found["micro_batches"]) == (0, 2, 3)
    assert len(found["group_ids"]) == len(found["sample_ids"]) == found["tensors"]["prompt_ids"].size(0) == 3
    assert all(sample.startswith(group) for sample, group in zip(found["sample_ids"], found["group_ids"], strict=True))
    lines = lines_of(found["tensors"])
    assert result.policy.model(input_ids=lines.ids).logits.shape[:2] == lines.ids.shape
    assert any("layers.1.self_attn.q_proj" in name for name in found["parameters"])


def test_evidence_does_not_fill_the_disk(tmp_path: Path) -> None:
    for number in range(12):
        keep_evidence(tmp_path, f"v{number:06d}-1", {"version": number}, {"x": torch.zeros(2)})
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"v{number:06d}-1.pt" for number in range(4, 12)]


def test_idle_casts_are_the_same_bits(policy_dir: Path) -> None:
    """Without PEFT's casts under autocast, outputs and gradients are equal to the last bit."""
    policy = load_policy(TrainerConfig(base_model=str(policy_dir), dtype="bfloat16", lora={"r": 4, "alpha": 8}))  # type: ignore[arg-type]
    with torch.no_grad():
        for tensor in policy.trained().values():
            tensor.normal_(std=0.1)
    ids = lines_of(to_tensors(Stream().next_batch(), scale="group", pad_id=0, mask_truncated=False)).ids
    seen: list[list[torch.Tensor]] = []
    for active in (False, True):
        policy.model.zero_grad()
        with (
            torch.autocast("cpu", torch.bfloat16),
            sdpa_kernel(SDPBackend.MATH),
            disable_input_dtype_casting(policy.model, active=active),
        ):
            logits = policy.model(input_ids=ids).logits
        logits.float().square().mean().backward()
        gradients = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
        seen.append([logits.detach(), *gradients])
    assert len(seen[0]) > 10
    for before, after in zip(*seen, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_checkpointed_activations_are_computed_again_alike(dropout: float, policy_dir: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"dtype": "bfloat16", "lora": {"r": 4, "alpha": 8, "dropout": dropout}}
    expected = Run(policy_dir, tmp_path / "a", **more).go()
    found = Run(policy_dir, tmp_path / "b", gradient_checkpointing=True, **more).go()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


# In the service


def documented_snippet() -> str:
    """The code that docs/training.md gives for a kept micro-batch."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (found,) = [block for block in blocks if "no_number" in block]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_the_service_says_so_and_publishes_nothing_of_a_bad_step(
    lasting: bool,
    embedded_broker: EmbeddedBroker,
    prefix: str,
    policy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second step of three goes wrong, for good or in its first passes only."""
    common = make_common(embedded_broker.bootstrap, prefix.rstrip("."), tmp_path / "data")
    context = make_context(common, policy_dir, max_versions=3, micro_batch_size=3)

    def load(config: TrainerConfig) -> Policy:
        policy = load_policy(config)
        spoil(policy, lambda number, output: number > 3 if lasting else number in (4, 7))
        return policy

    monkeypatch.setattr(run_module, "load_policy", load)
    line = Line(common)
    line.start()
    try:
        if lasting:
            with pytest.raises(TrainingFailed, match=r"step 2 is nan, in float32 too, .*no_number/v000002-1\.pt"):
                run(context)
        else:
            run(context)
    finally:
        line.close()
    versions = [1] if lasting else [1, 2, 3]
    assert [step.version for step in steps_of(common)] == versions
    assert {policy.version for policy in policies_of(common)} == {0, *versions}
    run_dir = common.data_dir / "runs" / "run"
    assert sorted(path.name for path in (run_dir / "policies").iterdir()) == [f"v{v:06d}" for v in (0, *versions)]
    assert max(path.name for path in (run_dir / "checkpoints").iterdir()).startswith(f"{versions[-1]:08d}-")
    assert torch.load(run_dir / "no_number" / "v000002-1.pt", weights_only=True)["version"] == 1
    shown = context.metrics.registry.get_sample_value("gristmill_trainer_gradients_recovered_total")
    assert shown == (0 if lasting else 1)
    if lasting:
        names: dict[str, Any] = {"run_dir": str(run_dir)}
        exec(documented_snippet().replace("v000005-3", "v000002-1"), names)
        assert names["found"]["version"] == 1
        assert names["broken"] == [], "the fault was planted, not in the numbers"
