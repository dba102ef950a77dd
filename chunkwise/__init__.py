"""What every package of this project stands on; knows no robot, car or paper.

import chunkwise
policy = chunkwise.load_policy("runs/qchunk-cube_single-...")     # of any package
chunkwise.watch("runs/qchunk-cube_single-...")                    # in a notebook, while it trains
config = chunkwise.get_config("qchunk/debug")                     # what a config file of one's own begins with
"""

import sys
import typing

__version__ = "0.1.0"
__all__ = ["__version__", "get_config", "load_policy", "watch"]

if typing.TYPE_CHECKING:
    from chunkwise.config.load import get_config
    from chunkwise.policies.load import load_policy
    from chunkwise.reports.watch import watch

if sys.argv[:1] == ["-m"]:  # a module of ours is about to be run; else `import chunkwise` imports nothing
    from chunkwise.config.programs import require_program

    require_program(__name__, __path__)


def __getattr__(name: str) -> typing.Any:
    """Imports jax with the first use of what needs it: `import chunkwise` alone stays quick."""
    if name == "get_config":
        from chunkwise.config.load import get_config

        return get_config
    if name == "load_policy":
        from chunkwise.policies.load import load_policy

        return load_policy
    if name == "watch":
        from chunkwise.reports.watch import watch

        return watch
    raise AttributeError(f"module 'chunkwise' has no attribute {name!r}")
