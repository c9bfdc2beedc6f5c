"""One fused attention, put together from what an encoding declares: tiles of scores, a bias, tiles left out."""
