"""Training of drafters and of the demo pair. Needs the extra `train`."""
