"""kvpipe's own rules, the default: equal slots (docs/slots.md), or equal groups without them.

Every field is compared when layers merge, pages that do not divide are padded instead of refused,
and a plan stands only if one request really fits: all groups counted, the null block set aside.
"""

from kvpipe.engines.base import EngineRules

PLUGIN = EngineRules(name="kvpipe", source="kvpipe", groups="slots", splits_apart_pages=True)
