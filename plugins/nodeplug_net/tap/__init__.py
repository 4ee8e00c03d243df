"""The plugin tap: an interface of the container whose frames a program reads and writes."""
