"""Text in, text out: models and pairs, batching, generation."""
