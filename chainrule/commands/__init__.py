"""The commands of the command line: each takes the parsed arguments and returns its answer as plain values for JSON.

The answer is printed on stdout, messages and progress on stderr.
"""
