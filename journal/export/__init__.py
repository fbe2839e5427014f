"""From neutral messages to what providers take, and to what people read. Nothing here reads or writes a file."""

from .to_anthropic import anthropic
from .to_chat import openai_chat
from .to_markdown import markdown
from .to_responses import openai_responses

__all__ = ["anthropic", "markdown", "openai_chat", "openai_responses"]
