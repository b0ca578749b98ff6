"""Views, forms and middleware."""
