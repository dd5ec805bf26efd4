"""Tables for people, by topic; `--json` is for programs."""
