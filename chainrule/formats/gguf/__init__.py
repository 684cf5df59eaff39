"""GGUF files of llama.cpp: import and export."""
