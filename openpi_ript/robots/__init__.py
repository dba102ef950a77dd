"""What lies between a robot's own numbers and names and those that openpi's policies were trained on."""
