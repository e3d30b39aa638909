"""Configuration of the trainer. Imports nothing heavy: every ``gristmill`` command reads it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, SecretStr, model_validator

from gristmill.config import Section

LossType: TypeAlias = Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
Correction: TypeAlias = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]

CLIP_HIGH: dict[str, float] = {"dapo": 0.28, "cispo": 5.0}
"""Upper clip of the losses whose papers set their own; the others clip symmetrically."""

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (recognised, not bound to by default)
"""Addresses to listen on that nobody can connect to."""


class LoraSettings(Section):
    """Shape of the adapter. Only what SGLang serves is offered: no rsLoRA, DoRA, bias or per-module ranks."""

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """The adapter's output is scaled by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in front of the adapter while training; anything but 0 shows as train/inference mismatch."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Last components of the names of the layers that get an adapter."""

    @model_validator(mode="after")
    def _servable(self) -> LoraSettings:
        targets = set(self.target_modules)
        if not targets:
            raise ValueError("target_modules is empty")
        if len({"q_proj", "v_proj"} & targets) == 1:
            raise ValueError("SGLang serves q_proj and v_proj only together: target both or neither")
        if "lm_head" in targets:
            raise ValueError("lm_head cannot have an adapter: TRL reads its weight directly")
        return self


class WeightSourceSettings(Section):
    """The weight source: published versions served from the trainer's memory, for engines that take all weights
    through NCCL or CUDA IPC. Needs ``weights: full``."""

    enabled: bool = False
    """Hold the newest two versions on the trainer's device and serve them."""
    host: str = "127.0.0.1"
    """Address that the source, and the rendezvous of its process groups, listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the source; 0 takes a free one, which the log names (``weight_source_ready``)."""
    advertise: str | None = None
    """Address at which engines reach the rendezvous; null tells them ``host``."""
    key: SecretStr | None = None
    """Bearer key that requests need; null for none. Set one where ``host`` is not loopback."""
    bucket_mb: int = Field(default=512, ge=1)
    """Most mebibytes of weights in one bucket; a larger tensor has a bucket of its own."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that an engine may take to join a process group, and to receive one bucket."""
    lease_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after which a lease that nobody ended or renewed ends by itself."""

    @model_validator(mode="after")
    def _reachable(self) -> WeightSourceSettings:
        if self.host in WILDCARDS and self.advertise is None:
            raise ValueError(f"host {self.host} is no address that engines can connect to: set advertise too")
        return self


class TrainerConfig(Section):
    """GRPO trainer: which groups it takes, how it learns from them, what it keeps."""

    base_model: str | None = None
    """Folder or hub id of the model that the policy starts from. Required to train."""
    weights: Literal["lora", "full"] = "lora"
    """``lora`` trains and publishes an adapter; ``full`` trains and publishes all weights."""
    lora: LoraSettings = LoraSettings()
    """Shape of the adapter."""
    max_versions: int | None = Field(default=None, ge=1)
    """Stop after this policy version; without it the trainer runs until it is stopped."""

    groups_per_step: int = Field(default=16, ge=1)
    """Groups that one optimizer step takes; each step makes one policy version."""
    max_staleness: int = Field(default=1, ge=0)
    """Largest lag, in versions, of any token that is trained on; 0 is strictly on-policy."""
    min_group_size: int = Field(default=2, ge=2)
    """A group with fewer scored samples than this fails."""
    filter_zero_variance: bool = True
    """Drop groups whose rewards are all equal: they have no advantage to learn from."""
    unparsable_reward: float | None = None
    """Reward of a completion whose answer could not be parsed; null counts it as failed."""
    incomplete_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after its first sample that a group waits for the rest."""
    lost_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds after which an admitted group that nobody speaks of is given up, so that its credit returns."""
    refund_interval_s: float = Field(default=0.05, ge=0)
    """Credit refunds within this time go out as one record."""

    loss_type: LossType = "dapo"
    """TRL's ``loss_type``."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the group, of the batch, or not at all."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Level of the ratio in the loss; ``sequence`` with ``loss_type: grpo`` is GSPO."""
    correction: Correction = "token_truncate"
    """Importance weight against the behaviour policy: truncate or mask it, by token or by sequence. ``none`` puts
    the behaviour logprobs into the loss's own clipped ratio instead."""
    correction_max: float | None = Field(default=2.0, gt=0)
    """Upper bound of the importance weight; null for none."""
    correction_min: float | None = Field(default=None, ge=0)
    """Lower bound of the importance weight; null for none."""
    epsilon: float = Field(default=0.2, gt=0)
    """Lower clip of the ratio, and the upper one where ``epsilon_high`` is null and the loss has none of its own."""
    epsilon_high: float | None = Field(default=None, gt=0)
    """Upper clip; null takes 0.28 for dapo, 5.0 for cispo and ``epsilon`` for the others."""
    delta: float | None = Field(default=None, gt=0)
    """Upper bound of the unclipped ratio for negative advantages (two-sided clipping); null for none."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term against the base model; above 0 costs one more forward pass."""
    off_policy_mask_threshold: float | None = Field(default=None, gt=0)
    """Mask sequences with negative advantage whose mean KL from the behaviour policy exceeds this; null for never."""
    top_entropy_quantile: float = Field(default=1.0, gt=0, le=1)
    """Share of tokens, by falling entropy, that carry the loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    mask_truncated_completions: bool = False
    """Take completions that ended by length out of the loss; they still count in the group's mean."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Constant that dr_grpo divides by; null takes the largest ``max_new_tokens`` of the batch."""
    temperature: float | None = Field(default=None, gt=0)
    """Sampling temperature of the completions; null adopts that of the first one. Others are invalid, since
    logprobs compare at one temperature only."""

    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate."""
    lr_scheduler: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    """Shape of the learning rate over the steps; linear and cosine end at ``max_versions``."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up, for every shape but ``constant``."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW beta1."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW beta2."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Gradients are clipped to this norm; 0 turns clipping off."""
    micro_batch_size: int = Field(default=64, ge=1)
    """Most rows in one forward pass."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Most tokens, padding included, in one forward pass; a longer row goes alone."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, to save memory."""

    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where to train: ``cpu``, ``cuda`` (the first visible GPU), ``cuda:N``, or ``auto``, which takes a GPU when there
    is one."""
    gpu_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    """Most of the GPU's memory that the trainer may take, for a card that it shares with an engine; null for all.
    Without effect on a CPU."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """``auto`` is bfloat16 on a GPU and float32 on a CPU. Trained weights and optimizer stay float32."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; null leaves torch's own choice."""
    seed: int = 0
    """Seed of adapter initialisation and dropout."""

    checkpoint_every: int = Field(default=1, ge=1)
    """Versions between checkpoints that hold the optimizer's moments anew. Those between hold all else, and the moments
    of the last whole one: a trainer that is killed goes on with exact weights and moments that are up to this many
    steps old, less one; one that is stopped goes on exactly. 1 is exact always."""
    checkpoints_kept: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk."""
    policies_kept: int = Field(default=8, ge=1)
    """Newest policy folders that stay on disk, besides version 0; never fewer than ``max_staleness`` + 2."""

    weight_source: WeightSourceSettings = WeightSourceSettings()
    """Serves published versions from memory."""

    @property
    def clip_high(self) -> float:
        """Upper clip in force."""
        if self.epsilon_high is not None:
            return self.epsilon_high
        return CLIP_HIGH.get(self.loss_type, self.epsilon)

    @model_validator(mode="after")
    def _consistent(self) -> TrainerConfig:
        if self.lr_scheduler in ("linear", "cosine") and self.max_versions is None:
            raise ValueError(f"lr_scheduler {self.lr_scheduler} needs max_versions, where it ends")
        if self.loss_type == "vespo" and self.correction.startswith("sequence"):
            raise ValueError("vespo works with correction none, token_truncate or token_mask only")
        if self.weight_source.enabled and self.weights != "full":
            raise ValueError(
                "weight_source.enabled needs weights full: an adapter is delivered as such (delivery lora)"
            )
        low, high = self.correction_min, self.correction_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"correction_min {low} is above correction_max {high}")
        return self
