"""openpi's data and pi0's weights in, CFG-RIPT training steps out."""
