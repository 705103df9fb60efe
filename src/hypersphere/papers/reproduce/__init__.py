"""Run the tables of the papers: rows as run folders, results beside the paper's figures.

>>> from hypersphere.train.recipes import papers
>>> papers.load("opt.6").figure
'error'
"""
