"""The arguments of each command, with their help. No module here imports torch.

`sample_command` of commands/query.py has its arguments in `sample_arguments` of the query.py here.
"""
