"""The shop's pages. Each request is a transaction."""

from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django_q.tasks import async_task

from ledger import client
from shop.models import Order


@csrf_exempt
def buy(request):
    """An order, its task in the ledger and its job in the shop's queue, or none of the three."""
    order = Order.objects.create(subject=request.POST["subject"])
    order.task = client.submit("pack", {"order": order.pk}, title=order.subject)
    Order.objects.filter(pk=order.pk).update(task=order.task)
    async_task("shop.jobs.mail_customer", order.pk)
    if "fail" in request.POST:
        raise RuntimeError("the payment failed")
    return JsonResponse({"order": order.pk, "task": str(order.task)})


def home(request):
    """On the shop's base.html."""
    return render(request, "home.html")


def login(request):
    """The shop's sign-in page."""
    return HttpResponse("the shop's sign-in page")
