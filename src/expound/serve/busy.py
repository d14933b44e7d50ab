"""The error of a server that has too much to do."""


class BusyError(Exception):
    """The server cannot process the request now; the client can repeat it later."""
