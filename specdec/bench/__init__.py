"""Measuring: timings and the records that carry where they were taken."""
