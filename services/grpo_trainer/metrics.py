"""Prometheus metrics of the trainer."""

from __future__ import annotations

from gristmill.freshness import length_bucket
from gristmill.messages import Rejection, TrainingStep
from gristmill.metrics import Metrics
from grpo_trainer.phases import Phases

LAG_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)


class TrainerMetrics:
    """What the trainer shows; see ``docs/training.md``."""

    def __init__(self, metrics: Metrics) -> None:
        self.version = metrics.gauge("trainer_policy_version", "Newest policy version.")
        self.admit_until = metrics.gauge("trainer_admit_until", "Largest ordinal that generators may start.")
        self.settled = metrics.gauge("trainer_settled_groups", "Groups trained, filtered, rejected or failed.")
        self.assembling = metrics.gauge("trainer_groups_assembling", "Groups that wait for samples.")
        self.ready = metrics.gauge("trainer_groups_ready", "Groups that wait for a training step.")
        self.verdicts = metrics.counter("trainer_verdicts", "Verdicts read, by what became of them.", ["outcome"])
        self.rejected = metrics.counter(
            "trainer_rejected_samples", "Samples not trained on, by reason and completion length.", ["why", "length"]
        )
        self.trained = metrics.counter("trainer_trained_samples", "Samples trained on.")
        self.tokens = metrics.counter("trainer_tokens", "Tokens trained on.", ["part"])
        self.staleness = metrics.histogram(
            "trainer_staleness", "Lag of trained samples, in versions.", buckets=LAG_BUCKETS
        )
        self.wait = metrics.histogram("trainer_wait_seconds", "Waiting for a batch.")
        self.train = metrics.histogram("trainer_train_seconds", "Forward, backward and optimizer.")
        self.publish = metrics.histogram("trainer_publish_seconds", "Saving and checkpointing.")
        self.publish_phase = metrics.histogram(
            "trainer_publish_phase_seconds",
            "Parts of a publication; save, hash and flush run beside checkpoint.",
            ["phase"],
        )
        self.reward = metrics.gauge("trainer_reward_mean", "Mean reward of the last batch.")
        self.loss = metrics.gauge("trainer_loss", "Loss of the last step.")
        self.entropy = metrics.gauge("trainer_entropy", "Mean token entropy of the last batch, nats.")
        self.grad_norm = metrics.gauge("trainer_grad_norm", "Gradient norm of the last step.")
        self.recovered = metrics.counter(
            "trainer_gradients_recovered", "Gradients that were no number and became one when taken again."
        )
        self.clip_fraction = metrics.gauge("trainer_clip_fraction", "Share of ratios clipped in the last step.")
        self.mismatch_kl = metrics.gauge("trainer_mismatch_kl", "k3 KL between the engine's logprobs and ours.")
        self.mismatch_ratio = metrics.gauge("trainer_mismatch_max_ratio", "Largest ratio between the two.")

    def count_rejection(self, rejection: Rejection) -> None:
        """Count the samples of a rejection."""
        for length in rejection.lengths:
            self.rejected.labels(rejection.why, length_bucket(length)).inc()

    def show_phases(self, phases: Phases) -> None:
        """Show how long the parts of a publication took."""
        for phase, seconds in phases.seconds.items():
            self.publish_phase.labels(phase).observe(seconds)

    def show_step(self, step: TrainingStep) -> None:
        """Show a finished step."""
        self.trained.inc(len(step.sample_ids))
        self.tokens.labels("prompt").inc(step.prompt_tokens)
        self.tokens.labels("completion").inc(step.completion_tokens)
        for version in step.policy_versions:
            self.staleness.observe(step.version - 1 - version)
        self.wait.observe(step.wait_s)
        self.train.observe(step.train_s)
        self.publish.observe(step.publish_s)
        self.reward.set(step.reward_mean)
        self.loss.set(step.loss)
        self.entropy.set(step.entropy)
        self.grad_norm.set(step.grad_norm)
        self.clip_fraction.set(step.clip_fraction)
        self.mismatch_kl.set(step.mismatch_kl)
        self.mismatch_ratio.set(step.mismatch_max_ratio)
