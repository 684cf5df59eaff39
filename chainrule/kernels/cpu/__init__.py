"""Fast paths for the CPU: search in C++ that is compiled here, linear layers with int8 weights."""
