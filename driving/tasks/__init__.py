"""What is trained: pretraining objectives, and waypoints."""
