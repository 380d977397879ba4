"""Exports runs to files, and imports them into other stores."""
