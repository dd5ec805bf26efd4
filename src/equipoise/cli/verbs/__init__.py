"""The verbs, by topic; each file adds its own to the command with `mount`."""
