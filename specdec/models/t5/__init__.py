"""T5: the network, its decode weights and cache, and the scorer of them."""
