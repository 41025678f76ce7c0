"""The decoding core: distributions, verification, the loop, two contracts.

Imports jax, flax.struct and numpy only, and sees a model as a `Scorer`.
"""
