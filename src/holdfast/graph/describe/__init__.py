"""A graph as plain data, as a drawing, and the difference between two of them in words."""
