#!/usr/bin/env python3
"""The command line of the site: `.venv/bin/python manage.py help`."""

import os
import sys


def main() -> None:
    """Run one command; a wrong setting is one line, not a traceback."""
    # An empty line of an environment file says nothing.
    name = "DJANGO_SETTINGS_MODULE"
    os.environ[name] = os.environ.get(name) or "harness_site.settings"
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed here. Run `make setup`, then .venv/bin/python manage.py")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"Configuration: {error}")


if __name__ == "__main__":
    main()
