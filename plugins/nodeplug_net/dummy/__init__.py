"""The plugin dummy: an interface of the container that leads nowhere."""
