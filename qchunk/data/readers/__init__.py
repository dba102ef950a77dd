"""Readers of episode files: each is an EpisodeSource of chunkwise/data/episodes.py."""
