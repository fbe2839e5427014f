"""Repair: what a dead writer left open, and what damage is set aside; decided purely, written in one place."""
