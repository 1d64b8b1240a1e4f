"""Frozen records: what was seen (``run``) and what was concluded (``results``).

Nothing here computes more than a lookup, and nothing here has an effect.
"""
