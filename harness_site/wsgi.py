"""`gunicorn harness_site.wsgi`: the web side as a service of its own.

It runs the system checks itself, as every command does: gunicorn starts none of Django's. What they
refuse ends the start of gunicorn too, since a worker that can't load its application does.
"""

import os

from django.core.management import BaseCommand
from django.core.wsgi import get_wsgi_application

# An empty line of an environment file says nothing.
NAME = "DJANGO_SETTINGS_MODULE"
os.environ[NAME] = os.environ.get(NAME) or "harness_site.settings"

application = get_wsgi_application()
BaseCommand().check()
