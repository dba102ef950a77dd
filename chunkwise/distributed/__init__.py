"""Several processes: finding one another, talking, and stopping together."""
