"""Serving of captured language models: batched decoding and an OpenAI-compatible server."""
