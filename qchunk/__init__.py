"""Q-chunking: offline and offline-to-online reinforcement learning over action chunks."""
