"""Volumes, for any protocol: stage and publish, unpublish and unstage, and the records of them."""
