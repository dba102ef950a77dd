"""Configs, by package."""

from chunkwise.config.programs import require_program

require_program(__name__, __path__)
