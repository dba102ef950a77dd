"""pi0 in Linen, with the parameter tree of openpi's checkpoints."""
