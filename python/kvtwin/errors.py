"""The exceptions of kvtwin. Each message is one sentence: what is wrong, where, and what would be right."""


class Error(Exception):
    """Base class of the exceptions of kvtwin."""


class InputError(Error, ValueError):
    """Bad input: an unknown key, a value out of range, a file that cannot be read. Nothing was done."""


class WorkError(Error, RuntimeError):
    """The work failed, for example because a disk is full, a server does not answer, or a simulation was killed."""
