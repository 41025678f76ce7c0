"""The version; apart, so that what the package imports can name it."""

__version__ = "0.1.0"
