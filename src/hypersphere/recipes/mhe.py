"""The tables of mhe."""
