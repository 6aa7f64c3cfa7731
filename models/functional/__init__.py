"""Pure functions on tensors: attention, masks, pooling."""
