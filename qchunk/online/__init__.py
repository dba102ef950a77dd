"""The online phase and its replay."""
