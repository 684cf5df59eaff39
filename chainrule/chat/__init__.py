"""Conversations with a model: messages, the chat template, and a KV cache that is kept over turns."""
