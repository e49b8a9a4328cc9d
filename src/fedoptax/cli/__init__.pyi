"""The modules of the command line, for type checkers; `__init__.py` imports each when it is first used."""

from fedoptax.cli import data as data
from fedoptax.cli import deploy as deploy
from fedoptax.cli import listing as listing
from fedoptax.cli import many_runs as many_runs
from fedoptax.cli import predict as predict
from fedoptax.cli import report as report
from fedoptax.cli import resume as resume
from fedoptax.cli import run as run
from fedoptax.cli import sizes as sizes
