"""The trainer as a service. Torch and TRL are imported when it runs, not before."""

from __future__ import annotations

from gristmill.service import ServiceContext, ServiceSpec
from gristmill.startup import heavy_imports
from grpo_trainer.config import TrainerConfig
from grpo_trainer.gpu import claim_gpu, spare_memory


def run(ctx: ServiceContext[TrainerConfig]) -> None:
    """Train until ``max_versions`` is reached or the service is told to stop."""
    claim_gpu(ctx.config.device)
    if not ctx.config.weight_source.enabled:
        spare_memory()
    with heavy_imports():
        from grpo_trainer.run import train

    train(ctx)


SERVICE = ServiceSpec(
    name="grpo_trainer",
    section="trainer",
    config=TrainerConfig,
    run=run,
    summary="Learns from verdicts and publishes policy versions.",
)
