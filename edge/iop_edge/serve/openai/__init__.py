"""The ingress for callers: OpenAI- and Anthropic-compatible HTTP over the run service."""
