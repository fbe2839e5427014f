"""The session files of other tools: what they hold, and what is wrong with them. Nothing here writes."""
