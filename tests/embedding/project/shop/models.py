"""The shop's tables."""

import uuid

from django.contrib.auth.models import AbstractUser, BaseUserManager
from django.db import models


class Customers(BaseUserManager):
    """Makes customers."""

    def create_user(self, email, password=None, **fields):
        customer = self.model(email=self.normalize_email(email), **fields)
        customer.set_password(password)
        customer.save()
        return customer

    def create_superuser(self, email, password=None):
        return self.create_user(email, password, is_staff=True, is_superuser=True)


class Customer(AbstractUser):
    """Signs in by mail address."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    username = None
    email = models.EmailField(unique=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS = ()

    objects = Customers()


class Order(models.Model):
    """What a customer bought."""

    subject = models.CharField(max_length=100)
    task = models.UUIDField(null=True)
    packed_by = models.CharField(max_length=200, default="")
    mailed_by = models.CharField(max_length=200, default="")

    def __str__(self) -> str:
        return self.subject
