"""Volumes, whatever protocol asks for them: stage and publish, unpublish and unstage, and what is known of them."""
