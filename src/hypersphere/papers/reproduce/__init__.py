"""Run the tables of the papers: rows as run folders, results beside what the paper reports.

>>> from hypersphere.papers import tables
>>> tables.load("opt.6").metric
'error'
"""
