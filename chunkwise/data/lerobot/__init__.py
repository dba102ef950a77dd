"""LeRobot datasets, versions v2.1 and v3.0, read without torch."""
