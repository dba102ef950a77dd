"""Flax layers and flow matching, used by more than one package."""
