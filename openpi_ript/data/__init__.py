"""LeRobot datasets to openpi samples to RIPT batches; what a model takes of them."""
