"""Driving: pretraining of multi-camera encoders from episodes, and waypoint prediction on top."""
