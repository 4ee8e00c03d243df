"""Generated from proto/ by `python proto/generate.py`; one copy per process, since a descriptor pool knows each once."""
