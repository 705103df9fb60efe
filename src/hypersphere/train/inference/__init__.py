"""Use a finished run: load, evaluate, predict, export."""
