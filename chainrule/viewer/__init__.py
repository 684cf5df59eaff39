"""The viewer: views of models, as a live page, a self-contained file or in a notebook."""
