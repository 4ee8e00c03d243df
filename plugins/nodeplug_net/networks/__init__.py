"""Further interfaces of pods, by annotations (plugin `networks`)."""
