"""Readers of other formats, each a Reader of recording.py, and the writer of the project's own HDF5 episodes."""
