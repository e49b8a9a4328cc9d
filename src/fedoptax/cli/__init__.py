"""The command line: parsing and the work of each command."""
