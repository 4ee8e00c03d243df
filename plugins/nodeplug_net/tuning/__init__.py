"""The plugin tuning: settings of an interface that another plugin of the list made."""
