"""Names, modules, models and file layouts that exist only for old programs and old checkpoints.

Only `chop` and the few modules that answer an old name import from here.
"""
