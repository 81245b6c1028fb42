from kvpipe.stages.allocation._addresses import address_map as address_map
