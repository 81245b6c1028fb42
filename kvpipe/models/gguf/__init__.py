"""A model in GGUF: its header says the geometry, its tensor table every byte of weights."""
