"""Decode engine: a Llama that generates tokens in RTL, with weights streamed from memory."""
