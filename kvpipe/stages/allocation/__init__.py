from kvpipe.stages.allocation.addresses import address_map as address_map
