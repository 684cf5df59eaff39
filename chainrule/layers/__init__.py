"""Layers: the parts of networks, such as attention, norms, recurrent cells, embeddings and the loss."""
