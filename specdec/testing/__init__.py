"""Toy models and float64 oracles. Only tests import this room."""
