"""The `gossamer` command; one file per subcommand."""
