"""What can be wrong with an environment or its data."""

from protocol.errors import IntellectError


class EnvironmentFault(IntellectError):
    """An environment that cannot be loaded: unknown name, bad arguments, missing scorer."""


class Undecided(EnvironmentFault):
    """This machine cannot tell, for want of time, memory or a part of it; another may. Never held against anybody."""


class DatasetError(EnvironmentFault):
    """A data file that cannot be used; `why` names the file and the line."""


class PackageError(EnvironmentFault):
    """An environment package that cannot be used: its files, its description, its code or its rows."""
