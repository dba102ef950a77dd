"""Compiled programs on disk, so that the next start of a run need not compile again."""

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def keep_programs(folder: str) -> None:
    """From here on jax takes compiled programs from `folder` where it has them, and leaves new ones there.

    A program is found by all that goes into it: code, shapes, mesh, versions, devices. So runs may share a folder, and
    a changed program is compiled. jax keeps those that took more than a second.
    """
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).resolve()))
    compilation_cache.reset_cache()  # what was compiled before this has settled that there is none
