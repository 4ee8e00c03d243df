"""A scheduler extender that knows what is free on each card; see docs/scheduler.md."""
