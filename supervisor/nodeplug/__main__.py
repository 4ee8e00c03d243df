"""`python -m nodeplug`: the command line."""

from nodeplug.cli import main

main()
