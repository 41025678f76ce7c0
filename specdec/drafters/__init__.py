"""Approximation models: one file each, all behind `core.contracts.Drafter`."""
