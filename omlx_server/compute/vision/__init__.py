"""Images: vision towers, and how their features enter a language model.

Nothing here keeps anything of a request between forwards.
"""
