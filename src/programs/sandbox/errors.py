"""What the sandbox raises."""


class SandboxError(RuntimeError):
    """The sandbox cannot run here, or not as strictly as asked."""


class BadTests(ValueError):
    """The tests given to run_code cannot be used: the caller's error, never the program's."""


class ServerGone(SandboxError):
    """The fork server was killed from outside: no word on the program."""


class Died(Exception):
    """The other process ended or broke the protocol."""
