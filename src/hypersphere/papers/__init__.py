"""The three papers: their tables, figures and results. Only the command line imports this package."""
