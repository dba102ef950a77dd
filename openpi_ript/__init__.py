"""openpi's data and pi0's weights in, CFG-RIPT training steps out."""

from chunkwise.config.programs import require_program

require_program(__name__, __path__)
