"""The round loop around methods and engines: settings, aggregation, history, checkpoints, the finished run.

Imports methods, engines, models, data and all below them; never evaluation, export, report, studies, flower or cli.
"""
