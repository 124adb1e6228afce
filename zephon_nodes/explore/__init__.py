"""Looking at a pipeline, in a notebook or a terminal: what comes out, from where, how fast, and what is slow.

Nothing in the core imports this package before it is asked for, and nothing in it changes what a pipeline gives.
"""
