"""Q-chunking: offline and offline-to-online reinforcement learning over action chunks."""

from chunkwise.config.programs import require_program

require_program(__name__, __path__)
