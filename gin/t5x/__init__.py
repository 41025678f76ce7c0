"""Gin files; a package so that gin finds them by name once installed."""
