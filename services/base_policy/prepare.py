"""From a policy's name to a checked local folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from base_policy.cache import content_key, copy_to, obtain
from base_policy.config import PolicyConfig
from base_policy.hub import download, is_hub_id
from base_policy.model_folder import check_model_folder, has_chat_template
from gristmill.artifacts import digest_dir, digest_file
from gristmill.errors import ConfigError, MissingExtra

BUILD = 1
"""Raised when the code makes another model from the same settings; part of every cache key."""

Progress = Callable[[int, int, float], None]
"""Called during the warm-up with the steps done, the steps in all, and the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePolicy:
    """A base policy that is ready to be served and trained.

    `sha256` (of the folder, see `gristmill.artifacts.digest_dir`) identifies the base model; `built` says whether
    this call made it; `chat` whether its tokenizer can render chat messages.
    """

    path: Path
    sha256: str
    built: bool
    chat: bool


def prepare(
    config: PolicyConfig,
    *,
    cache_dir: Path,
    warmup_data: Path | None = None,
    out: Path | None = None,
    progress: Progress = lambda _done, _steps, _loss: None,
) -> BasePolicy:
    """Make, find or fetch the policy that `config.name` names; also copy it to `out` when given.

    Raises:
        ConfigError: an unknown name, an unusable folder, or warm-up data that is missing or malformed.
        MissingExtra: a package that this policy needs is not installed.
        InfrastructureError: the hub cannot be reached.
    """
    if config.name == "tiny":
        path, built = _tiny(config, cache_dir, warmup_data, progress)
    elif warmup_data is not None:
        raise ConfigError(f"policy {config.name}: warm-up data is for the policy tiny only")
    elif config.name == "smollm2":
        path, built = _smollm2(cache_dir)
    else:
        path, built = _existing(config), False
    check_model_folder(path)
    if out is not None:
        copy_to(path, out)
        path = out
    path = path.absolute()
    return BasePolicy(path=path, sha256=digest_dir(path), built=built, chat=has_chat_template(path))


def _tiny(config: PolicyConfig, root: Path, warmup_data: Path | None, progress: Progress) -> tuple[Path, bool]:
    if warmup_data is None:
        raise ConfigError(
            "policy tiny: it is made from worked problems, so give --warmup-data FILE; make the file with "
            "gristmill problems export --source arithmetic:levels=1-2 --split train --n 4000 --out FILE"
        )
    from base_policy.warmup_rows import read_rows

    rows = read_rows(warmup_data)
    parts = {
        "build": BUILD,
        "seed": config.seed,
        "tiny": config.tiny.model_dump(mode="json"),
        "data": digest_file(warmup_data),
    }

    def build(folder: Path) -> None:
        try:
            from base_policy.tiny import build_tiny
        except ModuleNotFoundError as error:
            raise MissingExtra("the policy tiny", "policy", error.name or str(error)) from error
        build_tiny(rows, config.tiny, folder, seed=config.seed, threads=config.threads, progress=progress)

    return obtain(root, "tiny", content_key(parts), build)


def _smollm2(root: Path) -> tuple[Path, bool]:
    from base_policy.smollm2 import convert, find_gguf

    gguf = find_gguf()
    key = content_key({"build": BUILD, "gguf": digest_file(gguf)})
    return obtain(root, "smollm2", key, lambda folder: convert(gguf, folder))


def _existing(config: PolicyConfig) -> Path:
    path = Path(config.name).expanduser()
    if path.exists():
        return path
    if config.name.startswith((".", "/", "~")) or not is_hub_id(config.name):
        raise ConfigError(
            f"policy {config.name}: no such folder; the policies are tiny, smollm2, a local folder or a hub id "
            "(owner/name)"
        )
    return download(config.name, config.revision)
