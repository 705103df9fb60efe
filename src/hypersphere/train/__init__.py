"""Training: so far the files of its checkpoints."""
