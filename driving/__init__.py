"""Driving: pretraining of multi-camera encoders from episodes, and waypoint prediction on top."""

from chunkwise.config.programs import require_program

require_program(__name__, __path__)
