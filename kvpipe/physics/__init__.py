"""How fast a step can be at best: what it must read and compute, over what the card can do."""
