"""Asking transformers what a model keeps between steps: no table of model types, no weights.

    releases -> build -> read -> needs      the model on the meta device, two tokens, its cache read
                                 needs -> as_engine         as an engine stores it: a ModelGeometry
                                 needs -> as_transformers   as transformers keeps it: CacheLayers

Only `build` and `read` use torch and transformers, and only when called.
"""
