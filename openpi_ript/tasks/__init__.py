"""What a run optimises: imitation of a dataset, or that and rounds of rollouts."""
