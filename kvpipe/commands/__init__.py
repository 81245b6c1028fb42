"""The commands: one file a command, the first word of a command line."""
