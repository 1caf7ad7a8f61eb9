"""Time, memory and agreement of the engines, measured on this machine: ``fedfew bench``.

Imports report, training and all below them; only cli imports it.
"""
