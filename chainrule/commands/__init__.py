"""What the verbs of the command line do: each takes the parsed words and returns its answer as plain values for JSON.

What a person reads goes to stdout when it is the answer, and to stderr when it is on the way there.
"""
