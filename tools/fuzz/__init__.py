"""Seeded fuzzers that make small what they find: `PYTHONPATH=tools python -m fuzz --help`."""
