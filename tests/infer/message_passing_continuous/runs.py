"""Runs that have to converge: a warning is an error in all tests."""

import pyrograph as pg


def fit(model, args=(), infer=pg.EP, **options):
    """The posterior of ``model(*args)``."""
    return pg.fit(model, args, infer=infer, progress=False, **options)
