"""Environments of a config, the simulated point, and scripted demonstrations in robosuite's Lift."""
