"""How a model's weights are stored: as published, or as another choice would have them."""
