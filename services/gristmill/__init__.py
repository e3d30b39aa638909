"""The kernel of Gristmill: messages, wire format, topics, worker loop, freshness, configuration, CLI.

Services import this package and third-party libraries, never each other; this package imports no
service. Both are contracts checked in CI.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gristmill")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0+source"
