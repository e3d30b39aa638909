"""A real schema registry (Apicurio) as a child process, and the clients that share no code with us."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from gristmill.broker import free_port

START_S = 90.0
OUTSIDE_CLIENTS = Path(__file__).parents[1] / "outside_clients"


def registry_home() -> Path | None:
    """Folder with the registry's ``start``: below ``GRISTMILL_SHARED``, else the shared copy next to the checkout."""
    shared = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared"))
    home = shared / "registry"
    return home if (home / "start").is_file() else None


def missing_for_registry() -> str | None:
    """Why a registry cannot be started here, or None."""
    if registry_home() is None:
        return "the schema registry is not here: set GRISTMILL_SHARED to the folder that holds registry/start"
    if shutil.which("java") is None:
        return "the schema registry needs Java 17, which is not on the PATH"
    return None


class Registry:
    """One registry on loopback; it forgets everything when it stops."""

    def __init__(self, log: Path) -> None:
        home = registry_home()
        assert home is not None
        self._command = ["bash", str(home / "start")]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, str(self.port)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as reply:
                    if reply.read() == b"[]":
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"the registry did not start: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def install_outside_clients(folder: Path) -> str | None:
    """``npm ci`` of ``tests/outside_clients`` into ``folder``; the reason when that is impossible here."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not on the PATH"
    for path in OUTSIDE_CLIENTS.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return None if done.returncode == 0 else f"npm ci failed: {done.stderr[-500:]}"
