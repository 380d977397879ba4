"""What Holdfast ships for the tests of others."""
