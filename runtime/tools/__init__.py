"""What a tool is, and the two that ship: run a command, write a file."""

from .base import LeftBehind, Reconciler, Tool, ToolContext, ToolFailed, ToolOutput, text_block

__all__ = ["LeftBehind", "Reconciler", "Tool", "ToolContext", "ToolFailed", "ToolOutput", "text_block"]
