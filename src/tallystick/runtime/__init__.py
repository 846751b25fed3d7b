"""The only place that composes: settings, directories, sessions."""
