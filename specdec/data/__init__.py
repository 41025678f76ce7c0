"""Vocabularies and, with the extra `seqio`, tasks."""
