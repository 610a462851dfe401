"""The history of jobs: runs, lost time, scores of checkpoints, costs of failures."""
