"""A finished run: load it, score it, predict with it, export it."""
