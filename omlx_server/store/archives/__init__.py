"""Archives: prefixes of the cache, each as one verified file."""
