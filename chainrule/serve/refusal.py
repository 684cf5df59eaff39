"""What a server does not do, and why: one line, with HTTP's number for it."""


class Refusal(Exception):
    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status = status
