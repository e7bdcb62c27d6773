"""Composition: the only place that knows every part, and puts them together.

A mode is an object that is made here or not; nothing below asks which mode it is in.
"""
