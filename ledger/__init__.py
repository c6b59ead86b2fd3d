"""The product: durable tasks, and the workers that hold them for one unit at a time. No HTML."""
