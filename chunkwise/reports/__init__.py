"""What measured numbers say."""
