"""Looking at a pipeline, in a notebook or a terminal: what comes out, from where, how fast, and what is slow.

No part of the core stands on this package, and nothing in it changes what a pipeline gives.
"""
