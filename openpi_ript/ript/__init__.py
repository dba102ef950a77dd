"""RIPT: rollouts in groups, advantages, rounds, evaluation."""
