"""Evaluation of a pair on seqio tasks. Needs the extra `seqio`."""
