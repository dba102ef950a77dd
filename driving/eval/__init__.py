"""Scores of waypoints, controls that see nothing, probes of features."""
