"""`gunicorn harness_site.wsgi`: the web side as a service of its own."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "harness_site.settings")

application = get_wsgi_application()
