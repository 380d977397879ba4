"""Nothing here is a test; collected for doctests, ``kinds`` would be there twice, with two classes of one wire name."""

collect_ignore_glob = ["*.py"]
