"""Acting between updates: rounds of drives in closed loop, and batches of their decisions."""
