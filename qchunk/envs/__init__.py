"""Simulators, scripted recordings in them, and videos."""
