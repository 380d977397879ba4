"""The bytes of records: headers, changes, manifests, and the names of values in them."""
