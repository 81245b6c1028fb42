"""Trace formats: one file a format, each with `PLUGIN`."""
