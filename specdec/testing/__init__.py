"""Toy models and oracles; only tests import them."""
