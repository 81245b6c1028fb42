"""What each engine's lines mean: an engine is one file with an `ENGINE`, listed in `known`."""
