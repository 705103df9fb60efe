"""Read and write the files of a run."""
