"""What all tests take for granted."""

import signal

# A process that a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
