"""Scores math completions: finds the final answer and compares it with the reference in killable workers.

The Python API is :mod:`math_verifier.api`; the service is :mod:`math_verifier.service`.
"""
