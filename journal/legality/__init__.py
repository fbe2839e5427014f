"""Would a provider take this array? Says so of any array, whoever made it, by rules that are told one by one."""

from .chat import openai_chat
from .messages import anthropic
from .responses import openai_responses
from .rules import RULES, Violation

__all__ = ["RULES", "Violation", "anthropic", "openai_chat", "openai_responses"]
