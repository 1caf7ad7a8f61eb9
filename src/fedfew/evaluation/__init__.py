"""Scores, costs, the choice of a model for a client and the choice of K.

Imports training and all below it; report, studies, flower and cli import it.
"""
