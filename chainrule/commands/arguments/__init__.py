"""What each command takes on the command line, in the words of its help. Nothing here imports torch.

A file is named like the one in `commands/` that does the work: `sample_command` of query.py has its options in
`sample_arguments` of the query.py here.
"""
