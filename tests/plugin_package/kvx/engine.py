"""engine=kvx_engine: kvpipe's rules, which never pad a bucket."""

from dataclasses import replace

from kvpipe.engines.kvpipe import PLUGIN as KVPIPE

KVX = replace(KVPIPE, name="kvx_engine", source="kvx", padding_threshold=1.0)
