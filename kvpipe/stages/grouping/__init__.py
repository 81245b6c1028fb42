"""Stage 3. To read in this order: base (what goes in and out), hybrid (the plugin), _ranks (the
steps), _groups (which layers share a table), then whichever rule you are after.
"""
