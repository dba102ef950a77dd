"""Networks of the agents: critics, policies, image encoders."""
