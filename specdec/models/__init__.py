"""Networks that the core runs as scorers, a folder each."""
