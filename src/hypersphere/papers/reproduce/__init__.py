"""Run the tables of the papers: rows as run folders, results beside the paper's figures.

>>> from hypersphere.papers import tables
>>> tables.load("opt.6").figure
'error'
"""
