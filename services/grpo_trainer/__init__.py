"""GRPO trainer: turns verdicts into policy versions, with TRL and PEFT doing the learning.

Nothing heavy is imported here or in :mod:`grpo_trainer.config`; torch and TRL load when the service runs.
"""
