"""Errors of the engine, by the HTTP answer that they become."""

from __future__ import annotations

from gristmill.errors import GristmillError


class RefusedRequest(GristmillError):
    """The request itself is wrong: HTTP 400 with ``{"error": {"message": ...}}``."""


class Overloaded(GristmillError):
    """No room for another request, or the server is stopping: HTTP 503."""


class UnsupportedModel(GristmillError):
    """A checkpoint or adapter that this engine cannot run faithfully; the message names the reason."""
