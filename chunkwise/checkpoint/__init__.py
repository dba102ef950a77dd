"""Checkpoints: saving, restoring, verifying, pruning."""
