"""Trains what a config file describes: `python launch.py --config configs/qchunk/debug.py [--field value ...]`."""

import sys

from chunkwise.cli import command
from chunkwise.cli.train import UNSAVED, launch, main, train
from chunkwise.config.load import load

__all__ = ["launch", "load", "main", "train"]

if __name__ == "__main__":
    command.run(lambda: launch(sys.argv[1:]), UNSAVED)
