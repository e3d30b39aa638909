"""Samples groups of completions from SGLang engines, each sample from exactly one confirmed policy version."""
