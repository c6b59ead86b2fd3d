"""What the ledger does for the shop."""

import os

from ledger.workflows import AskApproval, Workflow
from shop.models import Order

pack = Workflow("pack", self_approval=True)


@pack.step
def collect(ctx):
    """Work, with an artifact."""
    ctx.save_artifact("slip.txt", f"Order {ctx.input['order']}\n", "text/plain")
    return {"collected": True}


@pack.step
def review(ctx):
    """Somebody looks."""
    return AskApproval("Ship it?", body="The slip is attached.")


@pack.step
def close(ctx):
    """The shop's own tables, from a worker."""
    Order.objects.filter(pk=ctx.input["order"]).update(packed_by=os.environ["SHOP_ROLE"])
    return {"packed": True}
