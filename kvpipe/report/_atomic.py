"""The former place of `kvpipe.atomic`."""

from kvpipe.atomic import write_atomic

__all__ = ["write_atomic"]
