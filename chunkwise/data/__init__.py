"""Data that more than one package reads: sampling, episodes, images, packs, normalisation, LeRobot datasets."""
