"""Readers of episode files: each is an EpisodeSource of core/episodes.py."""
