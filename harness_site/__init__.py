"""The deployable site: settings, URLs and the bundled workflows."""
