"""Oracles and toy models; only tests import it."""
