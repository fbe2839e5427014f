"""Adapters for real providers, each behind an extra of the distribution: ``openai`` for chat completions over HTTP."""
