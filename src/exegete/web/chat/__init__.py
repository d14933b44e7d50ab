"""What a model says about documents: where its answer comes from, and how likely it stays without parts of them."""
