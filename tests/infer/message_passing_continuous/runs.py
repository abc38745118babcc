"""Runs that have to converge (a warning is an error in all tests), and what they multiplied."""

import pyrograph as pg


def fit(model, args=(), infer=pg.EP, **options):
    """The posterior of ``model(*args)``."""
    return pg.fit(model, args, infer=infer, progress=False, **options)


def merged(engine):
    """How many factors are part of others."""
    return sum(len(part.index) for part in engine.network.merged)
