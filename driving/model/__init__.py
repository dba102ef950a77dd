"""Flax modules: an encoder of several cameras, and what is put on top of it."""
