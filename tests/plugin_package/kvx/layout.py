"""layout=kvx_flash: flash_attn under another name."""

from kvpipe.layouts.flash_attn import PLUGIN as FlashAttn


class KvxFlash(FlashAttn):
    name = "kvx_flash"
