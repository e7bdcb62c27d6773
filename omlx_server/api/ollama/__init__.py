"""Ollama's API below /api: each route translates its request into what api/chat and the others
do, and the answer into Ollama's JSON, whole or as JSON lines."""
