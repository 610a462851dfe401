"""What jobs did: their runs and where the time went, scores of their checkpoints, what failures cost."""
