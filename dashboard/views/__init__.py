"""One module per page: access, query, render."""
