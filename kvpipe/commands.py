"""The first word of a command line. Apart: the front end needs it before pydantic is imported."""

COMMANDS = ("run", "replay", "find")
