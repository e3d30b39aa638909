"""Error classes, by what the line must do about them.

The worker retries an :class:`InfrastructureError`, sends the message of a :class:`BadInput` to the dead
letters, and lets everything else end the process: a bug must be seen, not skipped over.
"""


class GristmillError(Exception):
    """Base of all errors that Gristmill raises on purpose."""


class ConfigError(GristmillError):
    """The configuration cannot be used; the message names the key and what it accepts."""


class BadInput(GristmillError):
    """A message that no retry can save: it goes to the dead letters."""


class DecodeError(BadInput):
    """Bytes that are not a message of the expected schema."""


class InfrastructureError(GristmillError):
    """Something outside the message failed (engine, broker, disk): worth another try."""


class ArtifactError(GristmillError):
    """A policy artifact is missing or its digest differs from the announced one."""


class MissingExtra(GristmillError):
    """An optional dependency is not installed; the message says which extra brings it."""

    def __init__(self, feature: str, extra: str, missing: str) -> None:
        super().__init__(f"{feature} needs {missing}, which is not installed: pip install 'gristmill[{extra}]'")
