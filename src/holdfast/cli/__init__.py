"""The ``holdfast`` command: looks at the runs of a store, answers, cancels and cleans up, from a terminal or a script.

A command is a function in the module of its noun: ``holdfast runs ls`` is ``ls`` in ``runs.py``. ``main`` lists the
nouns. Modules import what they work with inside their functions, so that ``--help`` and short lists start fast.
"""
