"""Generated text: where responses stand in a batch, batches of ids, and the model that is explained in what it says."""
